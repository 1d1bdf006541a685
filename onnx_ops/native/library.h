#pragma once
/* The tables of operators that the library registers. */
#include "node.h"

EXPORT extern struct table onnx_ops_table; /* the one in use */
#ifdef ONNX_OPS_AHEAD
struct level { /* the table with the functions that were compiled for a CPU; the last level is empty */
    const char *cpu;
    struct table table;
};
extern const struct level onnx_ops_levels[];
#endif
