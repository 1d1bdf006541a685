#ifndef ONNX_OPS_LIBRARY_H
#define ONNX_OPS_LIBRARY_H
/* Declarations that the parts of the library share. */
#include "ort.h"
#include "table.h"
#include "text.h"
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

extern struct table onnx_ops_table; /* the one in use */
#ifdef ONNX_OPS_AHEAD
struct level { /* the table with the functions that were compiled for a CPU; the last level is empty */
    const char *cpu;
    struct table table;
};
extern const struct level onnx_ops_levels[];
#endif

enum { FUNCTIONS_OF_CUSTOM_OP = 25 };
struct custom_op { /* an OrtCustomOp */
    uint32_t version;
    void *functions[FUNCTIONS_OF_CUSTOM_OP];
    struct op *op;
    struct overload *overload;
};
struct state { /* the state of a node's kernel; after it come the attributes' values, a call and a constant result */
    struct op *op;
    const struct overload *overload;
    int64_t choice;   /* which kernel of those for a combination of ranks */
    int64_t has_code; /* whether there is a kernel for these types */
    void *result;     /* 0 if it is not constant */
    size_t result_size;
    int64_t rank, shape[MAX_RANK];
    struct call *planned; /* a copy of the last call, as far as the plan reads and writes it */
    atomic_int in_use;    /* whether a thread reads or writes that copy */
    struct block attributes;
};
enum { STRINGS = 8, HALF = 10, BRAIN_HALF = 16, TYPES, LARGEST_RESULT = 1 << 26 };
extern const unsigned char item_size[TYPES]; /* by element type; 0 for strings and unknown types */
int64_t elements(const int64_t *shape, int64_t rank);

/* python.c */
enum function { INFER, PLAN, KERNEL };
enum { UNFINISHED, DONE, LEFT_OUT, FAILED, REFUSED };
struct answer {
    int64_t outcome;
    char message[4096];
};
struct run { /* a run of a body in Python */
    const struct op *op;
    const struct overload *overload;
    struct call *call;
    void *context;
    void *outputs[MAX_OUTPUTS];
    status status;
};
struct python { /* functions of Python */
    void (*compile)(int64_t operator, int64_t function, int64_t overload, int64_t position, struct answer *);
    void (*plan)(int64_t operator, struct call *, struct answer *);
    void (*run)(int64_t operator, int64_t overload, struct run *, struct answer *);
    void (*interrupt)(void);
};
EXPORT extern struct python onnx_ops_python;
EXPORT int onnx_ops_outputs(struct run *run);
EXPORT void onnx_ops_fill_strings(struct run *run, size_t k, const char *content, const size_t *ends, size_t count);
status compile(const struct op *op, enum function function, int64_t overload, int64_t position, int *available);
int knows_strings(void);
int is_surveying(void);
status plan_in_python(const struct op *op, const struct text *title, struct call *call);
status run_in_python(const struct op *op, const struct overload *overload, struct call *call, void *context);
/* Have Python compile a function that the table lacks. Return from the caller, with or without an error, if it is still
 * lacking then. */
#define NEED(function, ...)                                                                                            \
    do {                                                                                                               \
        int available = (function) != 0;                                                                               \
        status failure = available ? 0 : compile(op, __VA_ARGS__, &available);                                         \
        if (failure || !available) return failure;                                                                     \
    } while (0)

/* halves.c */
void widen(int type, const uint16_t *from, float *to, int64_t count);
void narrow(int type, const float *from, uint16_t *to, int64_t count);

/* attributes.c */
struct values { /* a struct block that is being filled */
    char *at;
    size_t used, room;
};
typedef status read_function(const struct attribute *, const char *name, const void *source, int64_t k, struct values *,
                             int *outcome);
read_function read_from_node, read_from_inference;
size_t without_end(const char *text, size_t size);
status read_attributes(const struct op *op, const struct text *title, read_function *read, const void *source,
                       struct values *values);

/* plan.c */
int64_t combination(const struct op *op, const struct call *call);
void cut_steps(const struct op *op, struct call *call);
status infer_shapes(const struct op *op, const struct text *title, struct call *call);
status plan(const struct op *op, const struct text *title, int64_t combination, struct call *call);

/* run.c */
const struct input *input_of(const struct op *op, size_t k);
status explained(const struct op *op, const struct text *title, const struct refusal *refusal, int64_t returned);
status refuse(const struct op *op, const struct text *title, const char *argument, const int64_t *values, int64_t count,
              const char *rule, const int64_t *expected);
status read_tensor(const void *value, int *type, size_t *rank, int64_t copy[MAX_RANK], const int64_t **shape);
status put_tensor(const struct op *op, const struct text *title, size_t k, void *value, struct call *call);
void put_absent(size_t k, struct call *call);
status too_many_inputs(const struct op *op, const struct text *title, size_t count);
status get_output(void *context, size_t k, const int64_t *shape, int64_t rank, void **value);
status run_tiles(const struct op *op, kernel_function *kernel, struct call *call, void *context);
status compute(struct state *state, void *context);

/* node.c */
status create_kernel(const struct custom_op *custom, const void *unused, const void *info, void **kernel);
status infer(const struct custom_op *custom, void *context);

/* stays.c */
int stays(void);
#endif
