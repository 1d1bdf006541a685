#pragma once
/* Calls into Python, in processes that run it. */
#include "attributes.h"

enum function { INFER, PLAN, KERNEL };
struct run { /* a run of a body in Python */
    const struct op *op;
    const struct overload *overload;
    struct call *call;
    void *context;
    void *outputs[MAX_OUTPUTS];
    status status;
};

int is_surveying(void);
int compile(const struct op *op, enum function function, int64_t overload, int64_t position, status *error);
status plan_in_python(const struct op *op, const struct name *node, struct call *call);
status run_in_python(const struct op *op, const struct overload *overload, struct call *call, void *context);
