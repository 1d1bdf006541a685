#pragma once
/* The table of operators that the library reads, and the records that it shares with compiled code. declaration/operator.py and
 * compiler/records.py describe these; native/table.py fills the table. */
#include <stdatomic.h>
#include <stdint.h>

enum {
    MAX_RANK = 16,
    MAX_INPUTS = 16,
    MAX_OUTPUTS = 8,
    MAX_KERNELS = 4,
    MAX_TILES = 64,
    MAX_SHOWN = 32,
    LINE = 64,
    TILE_ELEMENTS = 1 << 12,
    MAX_GEOMETRY = 1 << 14,
};
enum { STRINGS = 8, HALF = 10, BRAIN_HALF = 16, TYPES }; /* some of ONNX's element types, and their number */
#define MAX_WORKSPACE ((int64_t)1 << 40)
#define ELEMENTS ((int64_t)1 << 58)

struct refusal {
    const char *argument, *rule;
    const int64_t *values;
    int64_t count, has_expected, expected, kinds, shown[MAX_SHOWN];
};
enum { OF_DOUBLES = 1, OF_EXPECTED = 2, OF_TEXT = 4 }; /* kinds: the values are doubles, the expected one is, they are bytes */
struct geometry {
    struct refusal refusal;
    int64_t workspace; /* bytes for each tile that runs */
    int64_t tiles;     /* the operator's own numbers follow */
};
struct vector { /* the values of an attribute, 64-bit integers or doubles; the offset is from the block's beginning */
    int64_t count, offset;
};
struct block { /* the values of a node's attributes, which follow the vectors */
    int64_t size; /* in bytes */
    struct vector vectors[];
};
struct tensor {
    void *data;
    int64_t size, rank, shape[MAX_RANK];
};
struct call {
    struct tensor tensors[MAX_INPUTS + MAX_OUTPUTS]; /* the outputs begin at MAX_INPUTS */
    int64_t input_count;                             /* the number of the node's inputs, including absent ones */
    const struct block *attributes;
    union {
        struct geometry geometry;
        char room[MAX_GEOMETRY];
    };
};

typedef int64_t shapes_function(struct call *); /* a plan or infer */
typedef int64_t kernel_function(struct call *, int64_t tile, void *workspace);

enum kind { INT, INTS, STRING, FLOAT, FLOATS, TEXT, TENSOR }; /* a STRING is a position among the choices */
struct attribute {
    const char *const *names; /* under which it may be written: the first one that a node has counts */
    int64_t name_count;
    const char *kind_rule, *rule;
    int64_t kind, required, repeats; /* repeats: the elements of a list that is written as an integer, or 0 */
    int64_t least, most, shortest, longest;
    const char *const *choices;
    int64_t choice_count;
    const int64_t *initials; /* the default as it stands in a block: initial_count numbers, for value_count values */
    int64_t initial_count, value_count;
};
enum presence { REQUIRED, OPTIONAL, VARIADIC };
enum { ABSENT = -1 }; /* the rank of an optional input that isn't there */
struct input {
    const char *name;
    int64_t wants_values, presence;
    const int64_t *ranks; /* the ranks for which bodies are compiled, with ABSENT; if none, one body is for all ranks */
    int64_t rank_count;
};
struct overload { /* an operator for one combination of the element types of inputs and outputs */
    int64_t types[MAX_INPUTS + MAX_OUTPUTS];
    kernel_function **kernels; /* for each combination of ranks kernel_count of them */
    int64_t kernel_count;
    int64_t has_code[MAX_KERNELS]; /* whether a kernel takes these types; else Python computes, or refuses: */
    const char *arguments[MAX_KERNELS], *refused[MAX_KERNELS], *rules[MAX_KERNELS]; /* the refusal of a kernel, or 0 */
};
struct op {
    const char *domain, *name, *declaration; /* declaration: a digest, which Python compares with its own */
    int64_t number;                          /* the operator's number in Python */
    int64_t first_version, is_default, is_custom, geometry_size; /* is_default: see registry.py */
    const struct attribute *attributes;
    int64_t attribute_count;
    const struct input *inputs;
    int64_t input_count;
    const int64_t *outputs; /* for each output the position of an input of the same type, or -1 */
    int64_t output_count;
    struct overload *overloads;
    int64_t overload_count;
    const char *const *terms; /* pairs: a name in refusals, and the operator's own term for it */
    int64_t term_count;
    int64_t chooser; /* the attribute, whose values choose the kernel; -1 if there is only one */
    const int64_t *choices;
    int64_t choice_count;
    int64_t kernel_count;      /* for each combination of ranks */
    int64_t combination_count; /* of ranks for which kernels are compiled; without any, Python computes */
    int64_t has_shapes;        /* whether the plan states the shapes; with has_bound, bounds of the first axes */
    int64_t has_ranks;         /* whether plans and kernels are for the ranks of `inputs`: then kernels get 16-bit floats
                                * as floats, and the plan's tiles are the steps of a loop, and a tile has one or more
                                * steps. Else `infer` states shapes as far as sizes are known */
    int64_t has_bound;
    shapes_function *infer;
    shapes_function **plans; /* for each combination of ranks */
    int64_t plan_count;
    atomic_llong kernels_made, results_made; /* numbers of nodes with a kernel, and with a constant result, so far */
    void *customs;                           /* the overloads as ONNX Runtime's custom ops, see library.c */
};
struct table {
    struct op *const *operators;
    int64_t operator_count;
};
