#ifndef ONNX_OPS_MOCK_H
#define ONNX_OPS_MOCK_H
/* ONNX Runtime's C interface without ONNX Runtime: the functions that the library calls. It keeps books of objects and
 * memory, and calls and allocations fail on demand. All of it may run in several threads; only one may have faults. */
#include "library.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { MOST_DIMENSIONS = 24, MOST_INPUTS = 24, MOST_ATTRIBUTES = 24, MOST_CUSTOM_OPS = 4096 };

struct info { /* an OrtTypeInfo or OrtTensorTypeAndShapeInfo */
    int type;
    size_t rank;
    int64_t sizes[MOST_DIMENSIONS];
    char names[MOST_DIMENSIONS][48];
};
struct string { /* an element of a tensor of strings */
    size_t size;
    char *at;
};
struct value { /* an OrtValue, with elements that end where an unreadable page begins */
    struct info info;
    void *data, *pages;
    size_t bytes, page_count;
};
struct given { /* an attribute of a node: bytes of numbers or of a text, or a tensor */
    char name[64];
    int kind; /* INT, INTS, STRING, FLOAT, FLOATS or TENSOR */
    size_t count;
    const char *content;
    struct value tensor;
};
struct node { /* an OrtKernelInfo */
    char name[256];
    size_t attribute_count, input_count;
    struct given attributes[MOST_ATTRIBUTES];
    struct value inputs[MOST_INPUTS]; /* absent if the type is 0 */
    struct value others[MOST_INPUTS]; /* of a second run */
    int has_others, has_constant[MOST_INPUTS], is_constant[MOST_INPUTS]; /* constant: as described, and in a mode */
    struct info known[MOST_INPUTS];   /* what the model states of the inputs */
};
struct context { /* an OrtKernelContext or OrtShapeInferContext */
    const struct node *node;
    const struct value *inputs; /* as many as the node has */
    const struct overload *overload;
    struct value outputs[MAX_OUTPUTS]; /* without data until they are asked for */
    struct info reported[MAX_OUTPUTS]; /* by shape inference; without a type until then */
};
struct options { /* OrtSessionOptions */
    size_t entry_count, domain_count;
    struct {
        char key[256], value[64];
    } entries[64];
    struct domain_of_options {
        char name[128];
        size_t count;
        struct custom_op *custom_ops[MOST_CUSTOM_OPS];
    } *domains[32];
};

struct faults { /* of calls, allocations or calls of Python */
    long count, at; /* how many there were; the number of the one that fails, from 1 on, or 0 */
    int is_lasting; /* whether all later ones fail as well */
};
extern struct faults calls, allocations, interrupts;
extern const char *failed_call; /* the name of the function that failed last */
struct books { /* how many there are at present */
    long statuses, infos, values, domains, blocks;
};
extern struct books books;
extern const struct api_base mock;
extern size_t largest_tensor, largest_block; /* bytes; for more, memory is lacking */
extern int pool;                             /* number of threads that run the tiles of a call */
extern long lost_tiles;                      /* of a call, that no thread runs, for lack of memory */

int fails(struct faults *faults);
struct options *new_options(void);
char *new_content(size_t size);
int make_value(struct value *value, int type, const int64_t *sizes, size_t rank);
void unmake_value(struct value *value);
const char *message_of(status error);
void release_options(struct options *options);

/* python.c */
int onnx_ops_outputs(struct run *run);
void onnx_ops_fill_strings(struct run *run, size_t k, const char *content, const size_t *ends, size_t count);

/* stand_in.c */
void connect_python(void);
void disconnect_python(void);
void forget(struct op *op);
void remember(struct op *op);
#endif
