/* Python, where it runs. An interrupt such as Ctrl-C may raise an exception at any of its instructions. None may
 * cross a C callback: Python's functions catch what they can, and ctypes drops one that leaves them all the same,
 * before their first line or after their last. So an answer is UNFINISHED until they say otherwise. What was
 * interrupted counts as done here: Python raises the exception where the call of ONNX Runtime returns. That a call has
 * failed it would not notice so early. */
#include "library.h"
#include <stdlib.h>
#include <string.h>

enum { UNFINISHED, DONE, LEFT_OUT, FAILED, REFUSED };
struct answer {
    int64_t outcome;
    char message[4096];
};
struct strings {
    const struct op *op;
    const struct parameters *parameters;
    struct call *call;
    void *context;
    status status;
};
EXPORT struct {
    void (*compile)(int64_t operator, int64_t function, int64_t overload, int64_t kernel, struct answer *);
    void (*run_strings)(int64_t operator, int64_t overload, struct strings *, struct answer *);
    void (*interrupt)(void);
} onnx_ops_python;
EXPORT const int64_t onnx_ops_layout[] = {sizeof(struct vector), sizeof(struct attribute), sizeof(struct overload),
                                          sizeof(struct op),     sizeof(struct answer),    sizeof(struct strings),
                                          sizeof(struct call)};
static OF_THREAD int waiting;   /* for Python to raise what interrupted it: until then it is not called */
static OF_THREAD int surveying; /* what sessions need: Python is asked for every kernel, also those that are there */

EXPORT void onnx_ops_wait_for_interrupt(int wait) { waiting = wait; }

EXPORT void onnx_ops_survey(int begins) { surveying = begins; }

int is_surveying(void) { return surveying; }

/* A status for an answer, or 0 with `*available` saying whether it was done. */
static status heard(const struct answer *answer, int *available) {
    *available = answer->outcome == DONE;
    if (answer->outcome == UNFINISHED) onnx_ops_python.interrupt();
    if (answer->outcome == FAILED || answer->outcome == REFUSED)
        return CreateStatus(answer->outcome == FAILED ? FAIL : INVALID_ARGUMENT, answer->message);
    return 0;
}

/* Have a function of the table that is missing compiled. */
status compile(const struct op *op, enum function function, int64_t overload, int64_t kernel, int *available) {
    struct answer answer = {UNFINISHED, ""};
    if (!onnx_ops_python.compile)
        return failed("onnx_ops: its operators are compiled by Python, where it has not been imported");
    if (!waiting) onnx_ops_python.compile(op - onnx_ops_table.operators, function, overload, kernel, &answer);
    return heard(&answer, available);
}

int knows_strings(void) { return onnx_ops_python.run_strings != 0; }

/* Strings, which compiled code does not know: Python gets a tensor of them as count + 1 offsets, then the bytes. */
static status put_strings(void *value, struct tensor *tensor) {
    size_t count = (size_t)tensor->size, bytes = 0, header = (count + 1) * sizeof(size_t);
    status wrong = GetStringTensorDataLength(value, &bytes);
    if (wrong) return wrong;
    size_t *offsets = tensor->data = malloc(header + bytes);
    if (!offsets) return failed("onnx_ops: no room for the strings of an input");
    offsets[count] = bytes;
    return GetStringTensorContent(value, (char *)offsets + header, bytes, offsets, count);
}

/* For Python: write the output, whose shape is in the call. */
EXPORT void onnx_ops_fill_strings(struct strings *strings, const char *const *content, size_t count) {
    const struct geometry *g = &strings->call->geometry;
    void *value;
    strings->status = KernelContext_GetOutput(strings->context, 0, g->shape, (size_t)g->rank, &value);
    if (!strings->status) strings->status = FillStringTensor(value, content, count);
}

status run_strings(const struct state *state, struct call *call, void *context) {
    struct strings strings = {state->op, &state->parameters, call, context, 0};
    struct answer answer = {UNFINISHED, ""};
    int available = 0;
    status wrong = 0;
    void *value;
    for (size_t k = 0; k < (size_t)state->op->input_count && !wrong; k++) /* data of strings are 0 until here */
        if (state->overload->types[k] == STRINGS) {
            wrong = KernelContext_GetInput(context, k, &value);
            if (!wrong) wrong = put_strings(value, &call->tensors[k]);
        }
    if (!wrong) {
        onnx_ops_python.run_strings(state->op - onnx_ops_table.operators, state->overload - state->op->overloads,
                                    &strings, &answer);
        wrong = heard(&answer, &available);
        if (wrong && strings.status) ReleaseStatus(strings.status);
        if (!wrong) wrong = strings.status;
        if (!wrong && !available) wrong = failed("onnx_ops: interrupted"); /* there is no output */
    }
    for (size_t k = 0; k < (size_t)state->op->input_count; k++)
        if (state->overload->types[k] == STRINGS) free(call->tensors[k].data);
    return wrong;
}
