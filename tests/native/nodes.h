#ifndef ONNX_OPS_NODES_H
#define ONNX_OPS_NODES_H
/* Nodes, which are read from descriptions, and their lives in the library. */
#include "mock.h"
#include <stdio.h>

enum { IS_ABSENT = 1, IS_CONSTANT = 2 }; /* flags of an input */
enum mode { AS_DESCRIBED, ALL_CONSTANT, SIZES_UNKNOWN, OLD_RUNTIME, COMPILED_LATER, SURVEYED, WITHOUT_PYTHON, MODES };
enum fault { CALL, ALLOCATION, ALL_LATER_ALLOCATIONS, INTERRUPT, FAULTS };
extern const char *const MODE_NAMES[], *const FAULT_NAMES[];
extern struct options *registered; /* the options that have all operators */
extern struct table custom_table;     /* operators that are not in the library's table, as custom ones */
extern int has_findings;

#define FINDING(...)                                                                                                   \
    (__atomic_store_n(&has_findings, 1, __ATOMIC_RELAXED), printf("FINDING: " __VA_ARGS__), printf("\n"))

struct reader { /* of a description; what is lacking at its end counts as zeros, so that any bytes describe a node */
    const char *at, *end;
};
const char *take(struct reader *reader, size_t size, void *to);
size_t take_byte(struct reader *reader);
const struct custom_op *take_node(struct reader *reader, struct node *node);
void release_node(struct node *node);
void set_mode(struct node *node, enum mode mode);

/* The life of a node: what was inferred, and its runs on its inputs, on its other inputs, and on its inputs again. The
 * messages are those of errors when it was made, and of the runs. */
enum { RUNS = 3, STEPS = 1 + RUNS };
struct life {
    struct context inferred, runs[RUNS];
    char refusals[STEPS][4200];
};
const char *onnx_ops_choose(void); /* library.c */
status RegisterCustomOps(void *options, const struct api_base *base);
status register_all(struct options *options);
struct options *options_for_all(void);
void live(const struct custom_op *custom, const struct node *node, enum mode mode, struct life *life);
void release_life(struct life *life);
int has_same_outputs(const struct context *a, const struct context *b);
int is_same_life(const struct life *a, const struct life *b);

void set_faults(enum fault fault, long at);
long count_of(enum fault fault);
int has_cause(enum fault fault, const char *message);
void live_with_fault(const char *path, const struct custom_op *custom, const struct node *node, enum mode mode,
                     enum fault fault, long n, const struct life *expected);
#endif
