#pragma once
/* A node of a model before its first run: checks, inferred shapes and its kernel. */
#include "run.h"

enum { FUNCTIONS_OF_CUSTOM_OP = 25 };
struct custom_op { /* an OrtCustomOp */
    uint32_t version;
    void *functions[FUNCTIONS_OF_CUSTOM_OP];
    struct op *op;
    struct overload *overload;
};
status create_kernel(const struct custom_op *custom, const void *unused, const void *info, void **kernel);
status infer(const struct custom_op *custom, void *context);
