#pragma once
/* Running a node. */
#include "plan.h"

struct state { /* the state of a node's kernel; after it come the attributes' values, a call and a constant result */
    struct op *op;
    const struct overload *overload;
    int64_t choice;       /* which kernel of those for a combination of ranks */
    int64_t has_code;     /* whether there is a kernel for these types */
    struct tensor result; /* without data if it isn't constant */
    size_t result_size;   /* in bytes */
    struct call *planned; /* a copy of the last call, as far as the plan reads and writes it */
    atomic_int in_use;    /* whether a thread reads or writes that copy */
    struct block attributes;
};
kernel_function *find_kernel(const struct state *state, int64_t ranks, status *error);
status run_tiles(const struct op *op, kernel_function *kernel, struct call *call, void *context);
status compute(struct state *state, void *context);
