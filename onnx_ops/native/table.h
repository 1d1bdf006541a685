#ifndef ONNX_OPS_TABLE_H
#define ONNX_OPS_TABLE_H
/* The table of operators that the library reads, and the records that it shares with compiled code: all of that is
 * described in operator.py and kernels/records.py. Whoever fills the table: table.py. */
#include <stdatomic.h>
#include <stdint.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum {
    MAX_RANK = 16,
    MAX_VALUES = 32,
    MAX_INPUTS = 8,
    MAX_ATTRIBUTES = 8,
    MAX_KERNELS = 4,
    MAX_TILES = 64,
    MAX_RECORD = 2048
};

struct refusal {
    const char *argument, *rule;
    const int64_t *values;
    int64_t count, has_expected, expected, number;
};
struct parameters {
    struct refusal refusal;
    int64_t kernel; /* and the operator's own */
};
struct geometry {
    struct refusal refusal;
    int64_t tiles, workspace, rank, shape[MAX_RANK]; /* and the operator's own */
};
struct vector {
    int64_t count, values[MAX_VALUES];
};
struct tensor {
    void *data;
    int64_t size, rank, shape[MAX_RANK];
};
struct call {
    struct tensor tensors[MAX_INPUTS + 1]; /* the output is the last */
    union {
        struct geometry geometry;
        char room[MAX_RECORD];
    };
};

typedef int64_t resolve_function(const struct vector attributes[], struct parameters *);
typedef int64_t shapes_function(const struct parameters *, struct call *); /* plan, infer */
typedef int64_t kernel_function(const struct call *, int64_t tile, void *workspace);

enum kind { INT, INTS, STRING };
struct attribute {
    const char *name, *kind_rule, *rule;
    int64_t kind, required;
    int64_t least, most, shortest, longest; /* of a string, its position among the choices */
    const char *const *choices;
    int64_t choice_count;
    struct vector initial; /* the default */
};
struct input {
    const char *name;
    int64_t wants_values;
};
struct overload { /* an operator for one combination of element types, those of the inputs and the output */
    int64_t types[MAX_INPUTS + 1];
    kernel_function *kernels[MAX_KERNELS];
    const char *arguments[MAX_KERNELS], *rules[MAX_KERNELS]; /* why a kernel doesn't take these types, or 0 */
};
struct op {
    const char *domain, *name, *declaration; /* the last: a digest, for Python to compare with its own */
    int64_t first_version, parameters_size, geometry_size, output_like; /* the last: an input of the output's type */
    const struct attribute *attributes;
    int64_t attribute_count;
    const struct input *inputs;
    int64_t input_count;
    struct overload *overloads;
    int64_t overload_count;
    const char *const *terms; /* pairs of a name and the operator's own word for it */
    int64_t term_count;
    resolve_function *resolve;
    shapes_function *plan, *infer;
    atomic_llong kernels_made, results_made; /* so far: of nodes, and of these how many have a constant result */
};
struct table {
    struct op *operators;
    int64_t operator_count;
};
#endif
