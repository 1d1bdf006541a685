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
struct run { /* of a body that Python runs */
    const struct overload *overload;
    struct call *call;
    void *context;
    void *outputs[MAX_OUTPUTS];
    status status;
};
EXPORT struct {
    void (*compile)(int64_t operator, int64_t function, int64_t overload, int64_t position, struct answer *);
    void (*plan)(int64_t operator, struct call *, struct answer *);
    void (*run)(int64_t operator, int64_t overload, struct run *, struct answer *);
    void (*interrupt)(void);
} onnx_ops_python;
EXPORT const int64_t onnx_ops_layout[] = {sizeof(struct attribute), sizeof(struct overload), sizeof(struct op),
                                          sizeof(struct answer),    sizeof(struct run),      sizeof(struct call)};
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
status compile(const struct op *op, enum function function, int64_t overload, int64_t position, int *available) {
    struct answer answer = {UNFINISHED, ""};
    if (!onnx_ops_python.compile)
        return failed("onnx_ops: its operators are compiled by Python, where it has not been imported");
    if (!waiting) onnx_ops_python.compile(op->number, function, overload, position, &answer);
    return heard(&answer, available);
}

int knows_strings(void) { return onnx_ops_python.run != 0; }

static int64_t type_of_input(const struct op *op, const struct overload *overload, size_t k) {
    return overload->types[k < (size_t)op->input_count ? k : (size_t)op->input_count - 1];
}

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

/* For Python: where output k is to be written, whose shape is in the call; 0 where the status says why there is none.
 */
EXPORT void *onnx_ops_output(struct run *run, size_t k) {
    const struct tensor *tensor = &run->call->tensors[MAX_INPUTS + k];
    void *data = 0;
    run->status = KernelContext_GetOutput(run->context, k, tensor->shape, (size_t)tensor->rank, &run->outputs[k]);
    if (!run->status && run->overload->types[MAX_INPUTS + k] != STRINGS)
        run->status = GetTensorMutableData(run->outputs[k], &data);
    return data;
}

/* For Python: write output k, of strings, which is there. */
EXPORT void onnx_ops_fill_strings(struct run *run, size_t k, const char *const *content, size_t count) {
    run->status = FillStringTensor(run->outputs[k], content, count);
}

static status lacking(const struct op *op, const struct call *call) {
    struct text text = {"", 0};
    say_title(&text, op), say_words(&text, ": its body is compiled for other ranks than");
    for (int64_t k = 0; k < call->input_count; k++)
        say_words(&text, k ? ", " : " "), say_number(&text, call->tensors[k].rank);
    say_words(&text, ", and runs in Python only, where onnx_ops has not been imported");
    return refused(&text);
}

/* Find the shapes of a function's outputs in Python. `title`: with the node's name, or 0. */
status plan_in_python(const struct op *op, const struct text *title, struct call *call) {
    struct answer answer = {UNFINISHED, ""};
    struct text own = {"", 0};
    int available = 0;
    if (!onnx_ops_python.plan) return lacking(op, call);
    if (!waiting) onnx_ops_python.plan(op->number, call, &answer);
    say_title(&own, op);
    if (title && answer.outcome == REFUSED && !strncmp(answer.message, own.at, own.used)) {
        struct text text = *title;
        say_words(&text, answer.message + own.used);
        return refused(&text);
    }
    status wrong = heard(&answer, &available);
    return wrong || available ? wrong : failed("onnx_ops: interrupted");
}

/* Run a body in Python: a function's, or the reference of an operator whose tensors are of strings. */
status run_in_python(const struct op *op, const struct overload *overload, struct call *call, void *context) {
    struct run run = {overload, call, context, {0}, 0};
    struct answer answer = {UNFINISHED, ""};
    int available = 0;
    status wrong = 0;
    void *value;
    if (!onnx_ops_python.run) return lacking(op, call);
    for (size_t k = 0; k < (size_t)call->input_count && !wrong; k++) /* data of strings are 0 until here */
        if (type_of_input(op, overload, k) == STRINGS && call->tensors[k].rank != ABSENT) {
            wrong = KernelContext_GetInput(context, k, &value);
            if (!wrong) wrong = put_strings(value, &call->tensors[k]);
        }
    if (!wrong) {
        if (!waiting) onnx_ops_python.run(op->number, overload - op->overloads, &run, &answer);
        wrong = heard(&answer, &available);
        if (wrong && run.status) ReleaseStatus(wrong); /* which only says that there is one */
        if (run.status) wrong = run.status;
        if (!wrong && !available) wrong = failed("onnx_ops: interrupted"); /* there is no output */
    }
    for (size_t k = 0; k < (size_t)call->input_count; k++)
        if (type_of_input(op, overload, k) == STRINGS) free(call->tensors[k].data);
    return wrong;
}
