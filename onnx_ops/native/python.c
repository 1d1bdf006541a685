/* Calls into Python, in processes that run it. */
#include "python.h"
#include <stdlib.h>
#include <string.h>

EXPORT const int64_t onnx_ops_layout[] = {sizeof(struct attribute), sizeof(struct overload), sizeof(struct op),
                                          sizeof(struct answer),    sizeof(struct run),      sizeof(struct call),
                                          ONNX_OPS_SOURCES};
static _Thread_local int surveying; /* a survey lists the kernels that sessions need: Python is asked for each */

EXPORT void onnx_ops_survey(int begins) { surveying = begins; }

int is_surveying(void) { return surveying; }

/* Have Python compile a function into the table. Returns whether it has: if not, there is an error, Python was
 * interrupted, or this is a survey, which only lists kernels. */
int compile(const struct op *op, enum function function, int64_t overload, int64_t position, status *error) {
    struct answer answer = {UNFINISHED, ""};
    if (!onnx_ops_python.compile)
        return *error = failed("onnx_ops: its operators are compiled by Python, where it has not been imported"), 0;
    if (!is_waiting()) onnx_ops_python.compile(op->number, function, overload, position, &answer);
    *error = answered(&answer);
    return answer.outcome == DONE;
}

static int is_of_strings(const struct op *op, const struct overload *overload, size_t k) {
    return overload->types[input_of(op, k) - op->inputs] == STRINGS;
}

/* Copy a tensor of strings for Python, as count + 1 offsets, then the bytes. Compiled code has no strings. */
static status put_strings(void *value, struct tensor *tensor) {
    size_t count = (size_t)tensor->size, bytes = 0, header = (count + 1) * sizeof(size_t);
    status error = GetStringTensorDataLength(value, &bytes);
    if (error) return error;
    size_t *offsets = tensor->data = malloc(header + bytes);
    if (!offsets) return failed("onnx_ops: no room for the strings of an input");
    offsets[count] = bytes;
    return GetStringTensorContent(value, (char *)offsets + header, bytes, offsets, count);
}

/* For Python: allocate the outputs, whose shapes are in the call, and put their addresses there. Returns 1, or 0 with
 * an error in run->status. */
EXPORT int onnx_ops_outputs(struct run *run) {
    for (size_t k = 0; k < (size_t)run->op->output_count; k++) {
        struct tensor *tensor = &run->call->tensors[MAX_INPUTS + k];
        void **output = &run->outputs[k];
        run->status = get_output(run->context, k, tensor, output);
        if (!run->status && run->overload->types[MAX_INPUTS + k] != STRINGS)
            run->status = GetTensorMutableData(*output, &tensor->data);
        if (run->status) return 0;
    }
    return 1;
}

/* For Python: write output k, which has strings. These are one after the other in `content`, and end at `ends`. */
EXPORT void onnx_ops_fill_strings(struct run *run, size_t k, const char *content, const size_t *ends, size_t count) {
    for (size_t i = 0, begin = 0; i < count && !run->status; begin = ends[i++]) {
        void *place = 0;
        size_t size = ends[i] - begin;
        run->status = made(GetResizedStringTensorElementBuffer(run->outputs[k], i, size, (char **)&place), &place);
        if (!run->status) memcpy(place, content + begin, size);
    }
}

/* The error for a body that only Python could run, where Python isn't. */
static status no_body(const struct op *op, const struct call *call) {
    struct text text = title_of(op);
    say_string(&text, ": its kernel takes other types or ranks than");
    for (int64_t k = 0; k < call->input_count; k++)
        say_string(&text, k ? ", " : " "), say_number(&text, call->tensors[k].rank);
    say_string(&text, ", for which it runs in Python only, where onnx_ops has not been imported");
    return refused(&text);
}

/* Find the shapes of the outputs in Python. */
status plan_in_python(const struct op *op, const struct name *node, struct call *call) {
    struct answer answer = {UNFINISHED, ""};
    if (!onnx_ops_python.plan) return no_body(op, call);
    if (!is_waiting()) onnx_ops_python.plan(op->number, node, call, &answer);
    status error = answered(&answer);
    return error || answer.outcome == DONE ? error : failed("onnx_ops: interrupted");
}

/* Compute the outputs in Python, by the reference, where there is no kernel for the types or ranks. */
status run_in_python(const struct op *op, const struct overload *overload, struct call *call, void *context) {
    struct run run = {op, overload, call, context, {0}, 0};
    struct answer answer = {UNFINISHED, ""};
    status error = 0;
    void *value;
    if (!onnx_ops_python.run) return no_body(op, call);
    for (size_t k = 0; k < (size_t)call->input_count && !error; k++) /* until here, the data of strings are 0 */
        if (is_of_strings(op, overload, k) && call->tensors[k].rank != ABSENT) {
            error = KernelContext_GetInput(context, k, &value);
            if (!error) error = put_strings(value, &call->tensors[k]);
        }
    if (!error) {
        if (!is_waiting()) onnx_ops_python.run(op->number, overload - op->overloads, &run, &answer);
        error = answered(&answer);
        if (error && run.status) ReleaseStatus(error); /* it only says that run.status has an error */
        if (run.status) error = run.status;
        if (!error && answer.outcome != DONE) error = failed("onnx_ops: interrupted"); /* there is no output */
    }
    for (size_t k = 0; k < (size_t)call->input_count; k++)
        if (is_of_strings(op, overload, k)) free(call->tensors[k].data);
    return error;
}
