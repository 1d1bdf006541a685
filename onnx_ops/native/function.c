/* Nodes whose operator is a function (own/function.py): its rule computes the shapes of the outputs. Its body is
 * compiled for each combination of ranks that it declares, or Python runs it. */
#include "library.h"
#include <stdlib.h>
#include <string.h>

/* The position of the combination of ranks that the inputs have, or -1 where the body isn't compiled for it. */
static int64_t combination(const struct op *op, const struct call *call) {
    int64_t index = 0;
    if (!op->is_compiled || call->input_count > op->input_count) return -1;
    for (int64_t k = 0; k < op->input_count; k++) {
        const struct input *input = &op->inputs[k];
        if (!input->rank_count) continue;
        int64_t position = 0, rank = call->tensors[k].rank;
        if (input->wants_values && rank != ABSENT) rank = 1; /* in the call it is the number of values */
        while (position < input->rank_count && input->ranks[position] != rank) position++;
        if (position == input->rank_count) return -1;
        index = index * input->rank_count + position;
    }
    return index;
}

static status check_outputs(const struct op *op, const struct text *title, struct call *call) {
    for (int64_t k = 0; k < op->output_count; k++) {
        struct tensor *out = &call->tensors[MAX_INPUTS + k];
        int64_t most = (int64_t)1 << 58;
        int fits = op->has_bound <= out->rank && out->rank <= MAX_RANK;
        for (int64_t a = 0; a < out->rank && fits; a++) {
            fits = 0 <= out->shape[a] && out->shape[a] <= most;
            if (fits && out->shape[a]) most /= out->shape[a];
        }
        if (!fits) {
            struct refusal refusal = {"shape of an output",
                                      "is what the rule says, but no shape of at most 2**58 elements",
                                      out->shape,
                                      out->rank < 0 || out->rank > MAX_RANK ? 0 : out->rank,
                                      0,
                                      0,
                                      0,
                                      {0}};
            return explained(op, title, &refusal, 1);
        }
        out->size = elements(out->shape, out->rank);
    }
    struct refusal refusal = {
        "workspace", "must be a number of bytes in [0, 2**40]", &call->geometry.workspace, -1, 0, 0, 0, {0}};
    int64_t workspace = call->geometry.workspace;
    return workspace < 0 || workspace > (int64_t)1 << 40 ? explained(op, title, &refusal, 1) : 0;
}

/* Cut the body's loop into tiles; run_function in execute.py does the same. */
static void cut_tiles(const struct op *op, struct call *call) {
    int64_t most = 1, *tiles = &call->geometry.tiles;
    for (int64_t k = 0; k < op->input_count; k++) most += call->tensors[k].size;
    for (int64_t k = 0; k < op->output_count; k++) most += call->tensors[MAX_INPUTS + k].size;
    most = (most - 1) / TILE_ELEMENTS + 1;
    if (!op->has_loop || *tiles < 1) *tiles = 1;
    if (*tiles > most) *tiles = most;
    if (*tiles > MAX_TILES) *tiles = MAX_TILES;
}

/* Find the shapes of the outputs by the rule, and the number of tiles if the body is compiled. */
status plan_function(struct op *op, const struct text *title, struct call *call) {
    int64_t position = combination(op, call), returned;
    status error = 0;
    begin_plan(op, call);
    if (position < 0) error = plan_in_python(op, title, call);
    else {
        NEED(op->plans[position], PLAN, 0, position);
        if ((returned = op->plans[position](call->parameters, call)))
            return explained(op, title, &call->geometry.refusal, returned);
    }
    return error ? error : check_outputs(op, title, call);
}

/* When a session is made: check the node as far as possible, and have its kernel compiled. */
status check_function(struct op *op, const struct overload *overload, const struct text *title, struct call *call) {
    int64_t position = combination(op, call);
    status error = op->has_rule ? plan_function(op, title, call) : 0;
    if (error || position < 0) return error;
    NEED(!is_surveying() && overload->kernels[position], KERNEL, overload - op->overloads, position);
    return 0;
}

/* Have the kernel compiled for all ranks, where a session does not know those that the inputs will have. */
status compile_all(const struct op *op, const struct overload *overload) {
    int available;
    status error = 0;
    for (int64_t k = 0; op->is_compiled && k < overload->kernel_count && !error; k++)
        error = compile(op, KERNEL, overload - op->overloads, k, &available);
    return error;
}

static int is_half(int64_t type) { return type == HALF || type == BRAIN_HALF; }

/* The bytes of a copy of tensor k for the body, or 0 if it needs none. 16-bit floats need a copy in float32. So do
 * outputs of which only a bound of the length is known: ONNX Runtime gets them when the body has run. */
static size_t staged_size(const struct op *op, const struct call *call, size_t k, int64_t type) {
    int64_t item = is_half(type) ? 4 : item_size[type];
    if (!is_half(type) && !(k >= MAX_INPUTS && op->has_bound)) return 0;
    return ((size_t)call->tensors[k].size * (size_t)item + 63) / 64 * 64;
}

static status give_output(const struct op *op, struct tensor *out, size_t k, int64_t type, int64_t bound,
                          void *context) {
    const void *staged = out->data;
    void *value;
    status error;
    if (op->has_bound) {
        if (out->shape[0] < 0 || out->shape[0] > bound)
            return explained(op, 0,
                             &(struct refusal){"length of an output",
                                               "is what the kernel returns; the rule's bound is",
                                               out->shape,
                                               -1,
                                               1,
                                               bound,
                                               0,
                                               {0}},
                             1);
        out->size = elements(out->shape, out->rank);
    }
    if ((error = KernelContext_GetOutput(context, k, out->shape, (size_t)out->rank, &value))) return error;
    if ((error = GetTensorMutableData(value, &out->data))) return error;
    if (staged && is_half(type)) narrow((int)type, staged, out->data, out->size);
    else if (staged && out->size) memcpy(out->data, staged, (size_t)out->size * item_size[type]);
    return 0;
}

/* Give the body its inputs and outputs; `room` is memory for copies. */
static status stage(const struct op *op, const int64_t *types, struct call *call, char *room, void *context) {
    status error = 0;
    for (size_t k = 0; k < (size_t)op->input_count; k++) {
        struct tensor *tensor = &call->tensors[k];
        size_t size = staged_size(op, call, k, types[k]);
        if (!size) continue;
        widen((int)types[k], tensor->data, (float *)room, tensor->size);
        tensor->data = room, room += size;
    }
    for (size_t k = 0; k < (size_t)op->output_count && !error; k++) {
        struct tensor *tensor = &call->tensors[MAX_INPUTS + k];
        void *value;
        if (op->has_bound || is_half(types[MAX_INPUTS + k])) {
            tensor->data = room, room += staged_size(op, call, MAX_INPUTS + k, types[MAX_INPUTS + k]);
            continue;
        }
        error = KernelContext_GetOutput(context, k, tensor->shape, (size_t)tensor->rank, &value);
        if (!error) error = GetTensorMutableData(value, &tensor->data);
    }
    return error;
}

/* Run a compiled body, after its plan. */
static status run_body(const struct state *state, kernel_function *kernel, struct call *call, void *context) {
    const struct op *op = state->op;
    const int64_t *types = state->overload->types;
    int64_t bounds[MAX_OUTPUTS];
    size_t needed = 0;
    int fits = 1;
    for (size_t k = 0; k < MAX_INPUTS + (size_t)op->output_count; k++) {
        if (k >= (size_t)op->input_count && k < MAX_INPUTS) continue;
        size_t size = staged_size(op, call, k, types[k]);
        fits &= size <= SIZE_MAX - needed;
        needed += size;
        if (k >= MAX_INPUTS) bounds[k - MAX_INPUTS] = call->tensors[k].shape[0];
    }
    char *room = needed && fits ? malloc(needed) : 0;
    if (!fits || (needed && !room)) return failed("onnx_ops: no room for what a function is given");
    status error = stage(op, types, call, room, context);
    if (!error) error = run_tiles(op, kernel, call, context);
    for (size_t k = 0; k < (size_t)op->output_count && !error; k++)
        if (op->has_bound || is_half(types[MAX_INPUTS + k]))
            error = give_output(op, &call->tensors[MAX_INPUTS + k], k, types[MAX_INPUTS + k], bounds[k], context);
    free(room);
    return error;
}

status compute_function(struct state *state, struct call *call, void *context) {
    struct op *op = state->op;
    int64_t position = combination(op, call);
    kernel_function **kernel = &state->overload->kernels[position < 0 ? 0 : position];
    if (position < 0) return run_in_python(op, state->overload, call, context);
    status error = plan_function(op, 0, call);
    if (error) return error;
    cut_tiles(op, call);
    NEED(*kernel, KERNEL, state->overload - op->overloads, position);
    return run_body(state, *kernel, call, context);
}

#ifdef ONNX_OPS_AHEAD
/* A function of Numba's own library that compiled code calls: compute the strides of an array in another shape; returns
 * 0 where that needs a copy. This one handles only arrays whose elements are contiguous. */
int numba_attempt_nocopy_reshape(intptr_t axes, const intptr_t *shape, const intptr_t *steps, intptr_t new_axes,
                                 const intptr_t *new_shape, intptr_t *new_steps, intptr_t item, int is_fortran) {
    intptr_t step = item;
    for (intptr_t a = axes; a-- > 0; step *= shape[a])
        if (shape[a] != 1 && steps[a] != step) return 0;
    if (is_fortran) return 0;
    step = item;
    for (intptr_t a = new_axes; a-- > 0; step *= new_shape[a]) new_steps[a] = step;
    return 1;
}
#endif
