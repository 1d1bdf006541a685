/* Stands for Python in a process that runs it (onnx_ops/native/python.c): compiles what was forgotten, by putting it
 * back into the table, and runs the bodies that aren't compiled. Such a body's outputs have the shape of the first
 * input, if no plan has stated them, and depend on all bytes of the inputs. */
#include "nodes.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FUNCTIONS = 1024 };
static struct { /* the functions of one operator */
    shapes_function *infer, *plans[MOST_FUNCTIONS];
    kernel_function *kernels[MOST_FUNCTIONS];
} forgotten;
static int has_forgotten;

void forget(struct op *op) {
    size_t n = 0;
    has_forgotten = 1, forgotten.infer = op->infer, op->infer = 0;
    if (op->plan_count > MOST_FUNCTIONS) abort();
    for (int64_t k = 0; k < op->plan_count; k++) forgotten.plans[k] = op->plans[k], op->plans[k] = 0;
    for (int64_t o = 0; o < op->overload_count; o++)
        for (int64_t k = 0; k < op->overloads[o].kernel_count; k++, n++) {
            if (n == MOST_FUNCTIONS) abort();
            forgotten.kernels[n] = op->overloads[o].kernels[k], op->overloads[o].kernels[k] = 0;
        }
}
void remember(struct op *op) {
    kernel_function **kernels = forgotten.kernels;
    op->infer = forgotten.infer, has_forgotten = 0;
    for (int64_t k = 0; k < op->plan_count; k++) op->plans[k] = forgotten.plans[k];
    for (int64_t o = 0; o < op->overload_count; o++)
        for (int64_t k = 0; k < op->overloads[o].kernel_count; k++) op->overloads[o].kernels[k] = *kernels++;
}

/* The operator that the library knows by this number, as in native/library.py. */
static struct op *operator_of(int64_t number) {
    enum { MADE = 1 << 20 };
    return number >= MADE ? custom_table.operators[number - MADE] : onnx_ops_table.operators[number];
}

/* Begin an answer; returns whether it is the one that fails on demand, by an exception or an interrupt. */
static int is_over(struct answer *answer, const char *function) {
    if (fails(&interrupts)) return 1;
    if (fails(&calls)) {
        failed_call = function, answer->outcome = FAILED;
        snprintf(answer->message, sizeof answer->message, "injected into %s", function);
        return 1;
    }
    return answer->outcome = DONE, 0;
}
static void compile_function(int64_t number, int64_t function, int64_t overload, int64_t position,
                             struct answer *answer) {
    struct op *op = operator_of(number);
    if (is_over(answer, __func__)) return;
    if (!has_forgotten) abort(); /* the table has all functions */
    if (function == INFER) op->infer = forgotten.infer;
    else if (function == PLAN) op->plans[position] = forgotten.plans[position];
    else if (is_surveying()) answer->outcome = LEFT_OUT;
    else {
        int64_t first = 0;
        for (int64_t o = 0; o < overload; o++) first += op->overloads[o].kernel_count;
        op->overloads[overload].kernels[position] = forgotten.kernels[first + position];
    }
}
/* Give the outputs the shape of the first input; returns whether the rule of these bodies allows it. */
static int put_shapes(const struct op *op, struct call *call, struct answer *answer) {
    const struct tensor *from = call->tensors;
    struct text text = title_of(op);
    for (size_t k = MAX_INPUTS; k < MAX_INPUTS + MAX_OUTPUTS; k++) call->tensors[k] = *from, call->tensors[k].data = 0;
    if (1 <= from->rank && from->rank <= 4) return 1;
    say_string(&text, ": rank of the first input = "), say_number(&text, from->rank);
    say_string(&text, ": must lie in [1, 4]");
    return answer->outcome = REFUSED, strcpy(answer->message, text.at), 0;
}
static void refuse_value(int64_t number, const struct name *node, const struct refusal *refusal, const char *note,
                         struct answer *answer) {
    if (is_over(answer, __func__)) return;
    struct text text = plain_refusal(operator_of(number), node, refusal, note);
    answer->outcome = REFUSED, strcpy(answer->message, text.at);
}
static void plan_call(int64_t number, const struct name *node, struct call *call, struct answer *answer) {
    (void)node;
    if (!is_over(answer, __func__)) put_shapes(operator_of(number), call, answer);
}

static unsigned mix(unsigned sum, const void *data, size_t size) {
    for (size_t k = 0; k < size; k++) sum = 31 * sum + ((const unsigned char *)data)[k];
    return sum;
}
/* A number that depends on all inputs, of which strings are given as offsets, then bytes. */
static unsigned sum_of_inputs(const struct run *run) {
    unsigned sum = 17;
    for (size_t k = 0; k < (size_t)run->call->input_count; k++) {
        const struct tensor *tensor = &run->call->tensors[k];
        size_t last = (size_t)run->op->input_count - 1;
        int64_t type = run->overload->types[k < last ? k : last];
        if (tensor->rank == ABSENT || !tensor->data) continue;
        size_t offsets = ((size_t)tensor->size + 1) * sizeof(size_t);
        if (type == STRINGS) sum = mix(sum, tensor->data, offsets + ((size_t *)tensor->data)[tensor->size]);
        else sum = mix(sum, tensor->data, (size_t)tensor->size * item_size[type]);
    }
    return sum;
}
static void fill_strings(struct run *run, size_t k, size_t count, unsigned sum) {
    static const char content[] = "abcdefghijklmnopqrstuvwxyz";
    size_t *ends = malloc((count + 1) * sizeof *ends);
    for (size_t n = 0; ends && n < count; n++) ends[n] = (n + sum % 2) * (sizeof content - 1) / (count + 1);
    if (ends) onnx_ops_fill_strings(run, k, content, ends, count);
    else run->status = failed("no room in Python");
    free(ends);
}
static void run_body(int64_t number, int64_t overload, struct run *run, struct answer *answer) {
    (void)number, (void)overload;
    if (is_over(answer, __func__)) return;
    if (combination(run->op, run->call) < 0 && !put_shapes(run->op, run->call, answer)) return; /* else a plan has */
    unsigned sum = sum_of_inputs(run);
    for (int64_t k = 0; k < run->op->output_count; k++) { /* of a bound, it takes half */
        struct tensor *out = &run->call->tensors[MAX_INPUTS + k];
        if (run->op->has_bound) out->shape[0] /= 2, out->size = elements(out->shape, out->rank);
    }
    int has_outputs = onnx_ops_outputs(run);
    for (size_t k = 0; k < (size_t)run->op->output_count && has_outputs && !run->status; k++) {
        const struct tensor *out = &run->call->tensors[MAX_INPUTS + k];
        int64_t type = run->overload->types[MAX_INPUTS + k];
        if (type == STRINGS) fill_strings(run, k, (size_t)out->size, sum);
        else if (out->size) memset(out->data, (int)(sum & 1), (size_t)out->size * item_size[type]);
    }
    if (run->status) answer->outcome = FAILED, strcpy(answer->message, "ONNX Runtime takes no output");
}
static void interrupt(void) {}

void disconnect_python(void) { memset(&onnx_ops_python, 0, sizeof onnx_ops_python); }

/* Have the library call these functions. */
void connect_python(void) {
    onnx_ops_python = (struct python){compile_function, plan_call, run_body, refuse_value, interrupt};
}
