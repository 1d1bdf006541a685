#pragma once
/* Errors about what an operator refuses, and answers of Python, which makes these errors where it runs. */
#include "ort.h"

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

struct name { /* of a node: any bytes */
    char *at;
    size_t size;
};
enum { UNFINISHED, DONE, LEFT_OUT, FAILED, REFUSED };
struct answer {
    int64_t outcome;
    char message[4096];
};
struct run;
struct python { /* functions of Python */
    void (*compile)(int64_t operator, int64_t function, int64_t overload, int64_t position, struct answer *);
    void (*plan)(int64_t operator, const struct name *node, struct call *, struct answer *);
    void (*run)(int64_t operator, int64_t overload, struct run *, struct answer *);
    void (*refuse)(int64_t operator, const struct name *node, const struct refusal *, const char *note, struct answer *);
    void (*interrupt)(void);
};
EXPORT extern struct python onnx_ops_python; /* its functions are 0 where Python doesn't run */
extern const struct name UNREAD;             /* in place of a node's name where nobody reads the error */
int is_waiting(void);
status answered(const struct answer *answer);
struct text plain_refusal(const struct op *op, const struct name *node, const struct refusal *refusal, const char *note);
status refuse(const struct op *op, const struct name *node, const struct refusal *refusal, const char *note);
status refuse_numbers(const struct op *op, const struct name *node, const char *argument, const int64_t *values,
                      int64_t count, const char *rule, const int64_t *expected);
status explained(const struct op *op, const struct name *node, const struct refusal *refusal, int64_t returned);
