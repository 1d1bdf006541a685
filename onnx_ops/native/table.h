#ifndef ONNX_OPS_TABLE_H
#define ONNX_OPS_TABLE_H
/* The table of operators that the library reads, and the records that it shares with compiled code: all of that is
 * described in declaration.py and kernels/records.py. Whoever fills the table: table.py. */
#include <stdatomic.h>
#include <stdint.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum {
    MAX_RANK = 16,
    MAX_INPUTS = 16,
    MAX_OUTPUTS = 8,
    MAX_ATTRIBUTES = 16,
    MAX_KERNELS = 4,
    MAX_TILES = 64,
    TILE_ELEMENTS = 1 << 12,
    MAX_RECORD = 2048
};

struct refusal {
    const char *argument, *rule;
    const int64_t *values;
    int64_t count, has_expected, expected, shown[32];
};
struct parameters {
    struct refusal refusal;
    int64_t kernel; /* and the operator's own */
};
struct geometry {
    struct refusal refusal;
    int64_t tiles, workspace, rank, shape[MAX_RANK]; /* and the operator's own */
};
struct vector { /* the values of an attribute, 64-bit integers or doubles; the offset from the block that it is in */
    int64_t count, offset;
};
struct tensor {
    void *data;
    int64_t size, rank, shape[MAX_RANK];
};
struct call {
    struct tensor tensors[MAX_INPUTS + MAX_OUTPUTS]; /* the outputs begin at MAX_INPUTS */
    int64_t input_count;                             /* that the node has, absent ones among them */
    const struct parameters *parameters;
    union {
        struct geometry geometry;
        char room[MAX_RECORD];
    };
};

typedef int64_t resolve_function(const struct vector attributes[], struct parameters *);
typedef int64_t shapes_function(const struct parameters *, struct call *); /* plan, infer */
typedef int64_t kernel_function(struct call *, int64_t tile, void *workspace);

enum kind { INT, INTS, STRING, FLOAT, FLOATS, TEXT, TENSOR }; /* a STRING is a position among the choices */
struct attribute {
    const char *name, *kind_rule, *rule;
    int64_t kind, required;
    int64_t least, most, shortest, longest;
    const char *const *choices;
    int64_t choice_count;
    const int64_t *initials; /* the default, as it stands in a block: so many words, and so many values */
    int64_t initial_count, value_count;
};
enum presence { REQUIRED, OPTIONAL, VARIADIC };
enum { ABSENT = -1 }; /* the rank of an optional input that isn't there */
struct input {
    const char *name;
    int64_t wants_values, presence;
    const int64_t *ranks; /* that bodies are compiled for, ABSENT among them; none: any rank by one body */
    int64_t rank_count;
};
struct overload { /* an operator for one combination of element types, those of the inputs and the outputs */
    int64_t types[MAX_INPUTS + MAX_OUTPUTS];
    kernel_function **kernels;
    int64_t kernel_count;
    const char *arguments[MAX_KERNELS], *rules[MAX_KERNELS]; /* why a kernel doesn't take these types, or 0 */
};
struct op {
    const char *domain, *name, *declaration; /* the last: a digest, for Python to compare with its own */
    int64_t number;                          /* by which Python knows it */
    int64_t first_version, parameters_size, geometry_size;
    const struct attribute *attributes;
    int64_t attribute_count;
    const struct input *inputs;
    int64_t input_count;
    const int64_t *outputs; /* for each the input whose type it has, or -1 */
    int64_t output_count;
    struct overload *overloads;
    int64_t overload_count;
    const char *const *terms; /* pairs of a name and the operator's own word for it */
    int64_t term_count;
    /* What a function declares instead (functions.py): a rule for shapes, or none, and a body that is compiled for each
     * combination of ranks, or is Python's. */
    int64_t is_function, has_rule, is_compiled, has_bound, has_loop;
    resolve_function *resolve; /* these two are none of a function's */
    shapes_function *infer;
    shapes_function **plans; /* one, or of a function one for each combination of ranks */
    int64_t plan_count;
    atomic_llong kernels_made, results_made; /* so far: of nodes, and of these how many have a constant result */
    void *customs;                           /* what library.c makes of the overloads */
};
struct table {
    struct op *operators;
    int64_t operator_count;
};
#endif
