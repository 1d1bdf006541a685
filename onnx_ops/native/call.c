/* The record of a call: the inputs of a node, and the errors about what it holds. */
#include "call.h"
#include <stdio.h>

const unsigned char item_size[TYPES] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 8, 16, 2};

int64_t elements(const int64_t *shape, int64_t rank) {
    uint64_t product = 1; /* it may overflow if another dimension is 0 */
    for (int64_t a = 0; a < rank; a++) product *= (uint64_t)shape[a];
    return (int64_t)product;
}

/* The declaration of input k; inputs beyond the last declared one belong to that, which is variadic. */
const struct input *input_of(const struct op *op, size_t k) {
    return &op->inputs[k < (size_t)op->input_count ? k : (size_t)op->input_count - 1];
}

static status refuse_input(const struct op *op, const struct name *node, size_t k, const char *what,
                           const int64_t *values, int64_t count, const char *rule) {
    char argument[256];
    snprintf(argument, sizeof argument, "%s of %s", what, input_of(op, k)->name);
    const int64_t most = MAX_RANK;
    return refuse_numbers(op, node, argument, values, count, rule, count < 0 ? &most : 0);
}

/* Put a tensor of ONNX Runtime's into the call as input k: its data and what the plan reads. */
status put_tensor(const struct op *op, const struct name *node, size_t k, void *value, struct call *call) {
    struct tensor *tensor = &call->tensors[k];
    const struct input *input = input_of(op, k);
    int64_t copy[MAX_RANK];
    const int64_t *shape = 0;
    size_t rank = 0;
    int type = 0;
    status error = read_tensor(value, &type, &rank, copy, &shape);
    tensor->data = 0;
    if (!rank) shape = copy; /* ONNX Runtime may have no address for it */
    if (!error && type != STRINGS) error = GetTensorMutableData(value, &tensor->data);
    if (error) return error;
    const int64_t values = input->wants_values, axes = (int64_t)rank;
    if (rank > MAX_RANK) return refuse_input(op, node, k, "rank", &axes, -1, "must be at most");
    if (!rank && !op->has_ranks && input->presence == OPTIONAL) /* to the plan, it would be absent */
        return refuse_input(op, node, k, "shape", shape, 0, "must have an axis");
    if (values && rank != 1) return refuse_input(op, node, k, "shape", shape, axes, "must have rank 1");
    if (values && shape[0] > MAX_RANK) return refuse_input(op, node, k, "length", shape, -1, "must be at most");
    tensor->size = elements(shape, axes);
    tensor->rank = values ? shape[0] : axes;
    for (int64_t a = 0; a < tensor->rank; a++)
        tensor->shape[a] = !values                ? shape[a]
                           : item_size[type] == 8 ? ((const int64_t *)tensor->data)[a]
                                                  : ((const int32_t *)tensor->data)[a];
    return 0;
}

/* Put an optional input that the node doesn't have into the call. */
void put_absent(size_t k, struct call *call) {
    call->tensors[k].data = 0, call->tensors[k].size = 0, call->tensors[k].rank = ABSENT;
}

/* Put the number of a node's inputs into the call. Those that are declared beyond it are absent. */
void put_count(const struct op *op, size_t count, struct call *call) {
    for (size_t k = count; k < (size_t)op->input_count; k++) put_absent(k, call);
    call->input_count = (int64_t)count;
}
