#pragma once
/* Calls into Python, in processes that run it. */
#include "attributes.h"
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

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
EXPORT extern struct python onnx_ops_python; /* its functions are 0 where Python doesn't run */
int is_surveying(void);
int compile(const struct op *op, enum function function, int64_t overload, int64_t position, status *error);
status plan_in_python(const struct op *op, const struct text *title, struct call *call);
status run_in_python(const struct op *op, const struct overload *overload, struct call *call, void *context);
