/* Running a node. */
#include "run.h"
#include "halves.h"
#include <stdlib.h>
#include <string.h>

static status put_inputs(const struct op *op, void *context, struct call *call) {
    size_t count = 0;
    void *value;
    status error = KernelContext_GetInputCount(context, &count);
    if (error) return error;
    for (size_t k = 0; k < count; k++) { /* at most MAX_INPUTS, as create_kernel has counted */
        if ((error = KernelContext_GetInput(context, k, &value))) return error;
        if (!value) put_absent(k, call);
        else if ((error = put_tensor(op, 0, k, value, call))) return error;
    }
    return put_count(op, count, call), NULL;
}

struct work {
    kernel_function *kernel;
    struct call *call;
    char *workspace; /* its parts begin at multiples of LINE, each `pitch` bytes after the one before */
    size_t pitch;
    atomic_ullong busy;
    atomic_llong failed;
    atomic_size_t ended; /* number of tiles */
};

static void run_tile(void *work_of_call, size_t tile) {
    struct work *work = work_of_call;
    unsigned long long busy = atomic_load_explicit(&work->busy, memory_order_relaxed), bit;
    int number;
    do { /* Take the first free part of the workspace, which is most likely in the cache. There is one for each tile
          * that can run at the same time. */
        for (number = 0, bit = 1; busy & bit && number < MAX_TILES - 1; number++) bit <<= 1;
    } while (!atomic_compare_exchange_weak_explicit(&work->busy, &busy, busy | bit, memory_order_acquire,
                                                    memory_order_relaxed) ||
             busy & bit);
    char *workspace = work->pitch ? work->workspace + (size_t)number * work->pitch : 0;
    int64_t returned = work->kernel(work->call, (int64_t)tile, workspace);
    if (returned) atomic_store(&work->failed, returned);
    atomic_fetch_and_explicit(&work->busy, ~bit, memory_order_release);
    atomic_fetch_add(&work->ended, 1);
}

/* Run the tiles of a call, after its plan, on the threads of the context, or on this one without a context. */
status run_tiles(const struct op *op, kernel_function *kernel, struct call *call, void *context) {
    const struct geometry *g = &call->geometry;
    int64_t tiles = g->tiles > 0 ? g->tiles : 0;
    size_t pitch = ((size_t)g->workspace + LINE - 1) / LINE * LINE;
    size_t needed = (size_t)(tiles < MAX_TILES ? tiles : MAX_TILES) * pitch;
    void *room = needed ? malloc(needed + LINE) : 0;
    if (needed && !room) {
        const int64_t bytes = (int64_t)needed;
        struct refusal refusal = {.argument = "workspace", .rule = "can't be allocated", .values = &bytes, .count = -1};
        return refuse(op, 0, &refusal, "bytes");
    }
    struct work work = {kernel, call, room ? (char *)(((uintptr_t)room / LINE + 1) * LINE) : 0, pitch, 0, 0, 0};
    status error = 0;
    if (tiles > 1 && context) {
        error = KernelContext_ParallelFor(context, run_tile, (size_t)tiles, 0, &work);
        if (!error && work.ended != (size_t)tiles)
            error = failed("onnx_ops: ONNX Runtime has no room to run all tiles");
    } else
        for (int64_t tile = 0; tile < tiles; tile++) run_tile(&work, (size_t)tile);
    free(room);
    return error ? error : explained(op, 0, &g->refusal, work.failed);
}

static int is_half(int64_t type) { return type == HALF || type == BRAIN_HALF; }

/* The bytes of the copy of tensor k that a kernel gets: more than 0, so that all copies have an address; 0 if there is
 * none. 16-bit floats may need a copy in float32. Outputs with only a bound of the length need a copy, too: ONNX Runtime
 * allocates them after the kernel. */
static size_t staged_size(const struct op *op, const struct call *call, size_t k, int64_t type) {
    const struct tensor *tensor = &call->tensors[k];
    int is_staged = (op->has_ranks && is_half(type)) || (k >= MAX_INPUTS && op->has_bound);
    if (!is_staged || tensor->rank == ABSENT) return 0;
    return ((size_t)tensor->size * (size_t)(is_half(type) ? 4 : item_size[type]) + 64) / 64 * 64;
}

/* Have ONNX Runtime allocate output k, of this shape, and put the address of its data there. */
static status allocate_output(void *context, size_t k, struct tensor *out) {
    void *value;
    status error = get_output(context, k, out, &value);
    return error ? error : GetTensorMutableData(value, &out->data);
}

static status give_output(const struct op *op, struct tensor *out, size_t k, int64_t type, int64_t bound,
                          void *context) {
    const void *staged = out->data;
    if (op->has_bound) {
        if (out->shape[0] < 0 || out->shape[0] > bound)
            return refuse_numbers(op, 0, "length of an output", out->shape, -1,
                                  "is the kernel's result; the bound of the shape function is", &bound);
        out->size = elements(out->shape, out->rank);
    }
    status error = allocate_output(context, k, out);
    if (error) return error;
    if (is_half(type)) narrow((int)type, staged, out->data, out->size);
    else if (out->size) memcpy(out->data, staged, (size_t)out->size * item_size[type]);
    return 0;
}

/* Give the kernel its inputs and outputs; `room` is memory for copies. */
static status stage(const struct op *op, const int64_t *types, struct call *call, char *room, void *context) {
    status error = 0;
    for (size_t k = 0; k < (size_t)op->input_count; k++) {
        struct tensor *tensor = &call->tensors[k];
        size_t size = staged_size(op, call, k, types[k]);
        if (!size) continue;
        widen((int)types[k], tensor->data, (float *)room, tensor->size);
        tensor->data = room, room += size;
    }
    for (size_t k = MAX_INPUTS; k < MAX_INPUTS + (size_t)op->output_count && !error; k++) {
        struct tensor *tensor = &call->tensors[k];
        size_t size = staged_size(op, call, k, types[k]);
        if (size) tensor->data = room, room += size;
        else error = allocate_output(context, k - MAX_INPUTS, tensor);
    }
    return error;
}

/* Run a kernel, after its plan. */
static status run_kernel(const struct state *state, kernel_function *kernel, struct call *call, void *context) {
    const struct op *op = state->op;
    const int64_t *types = state->overload->types;
    int64_t bounds[MAX_OUTPUTS];
    size_t needed = 0;
    int fits = 1;
    for (size_t k = 0; k < MAX_INPUTS + (size_t)op->output_count; k++) {
        if (k == (size_t)op->input_count) k = MAX_INPUTS;
        if (k >= MAX_INPUTS) bounds[k - MAX_INPUTS] = call->tensors[k].shape[0];
        size_t size = staged_size(op, call, k, types[k]);
        fits &= size <= SIZE_MAX - needed;
        needed += size;
    }
    char *room = needed && fits ? malloc(needed) : 0;
    if (!fits || (needed && !room)) return failed("onnx_ops: no room for copies of what a kernel is given");
    status error = stage(op, types, call, room, context);
    if (!error) error = run_tiles(op, kernel, call, context);
    for (size_t k = 0; k < (size_t)op->output_count && !error; k++)
        if (staged_size(op, call, MAX_INPUTS + k, types[MAX_INPUTS + k]))
            error = give_output(op, &call->tensors[MAX_INPUTS + k], k, types[MAX_INPUTS + k], bounds[k], context);
    free(room);
    return error;
}

/* Whether two calls are alike in all that a plan reads. */
static int are_alike(const struct op *op, const struct call *a, const struct call *b) {
    int64_t count = b->input_count > op->input_count ? b->input_count : op->input_count;
    if (a->input_count != b->input_count) return 0;
    for (int64_t k = 0; k < count; k++) {
        if (a->tensors[k].rank != b->tensors[k].rank) return 0;
        for (int64_t axis = 0; axis < b->tensors[k].rank; axis++)
            if (a->tensors[k].shape[axis] != b->tensors[k].shape[axis]) return 0;
    }
    return 1;
}

/* Plan a call, or copy the plan of the node's last one if that was alike: a network finds a plan's code in no cache, and
 * waits for it longer than a small node takes. A thread that comes while another one reads the copy plans for itself. */
static status plan_once(struct state *state, int64_t ranks, struct call *call) {
    const struct op *op = state->op;
    struct call *planned = state->planned;
    if (atomic_exchange_explicit(&state->in_use, 1, memory_order_acquire)) return plan(op, 0, ranks, call);
    status error = 0;
    if (are_alike(op, planned, call)) {
        for (int64_t k = MAX_INPUTS; k < MAX_INPUTS + op->output_count; k++) call->tensors[k] = planned->tensors[k];
        memcpy(&call->geometry, &planned->geometry, (size_t)op->geometry_size);
    } else if ((error = plan(op, 0, ranks, call))) planned->input_count = -1;
    else memcpy(planned, call, offsetof(struct call, geometry) + (size_t)op->geometry_size);
    atomic_store_explicit(&state->in_use, 0, memory_order_release);
    return error;
}

/* Find the kernel for a combination of ranks, which Python compiles if it is lacking. Returns 0 with an error, or after
 * an interrupt. */
kernel_function *find_kernel(const struct state *state, int64_t ranks, status *error) {
    const struct op *op = state->op;
    int64_t position = ranks * op->kernel_count + state->choice;
    kernel_function **kernel = &state->overload->kernels[position];
    return *kernel || compile(op, KERNEL, state->overload - op->overloads, position, error) ? *kernel : 0;
}

status compute(struct state *state, void *context) {
    struct call call;
    status error;
    if (!state) return failed("onnx_ops: its session was not made to run");
    if (state->result.data) {
        struct tensor out = state->result;
        if ((error = allocate_output(context, 0, &out))) return error;
        memcpy(out.data, state->result.data, state->result_size);
        return 0;
    }
    const struct op *op = state->op;
    if ((error = put_inputs(op, context, &call))) return error;
    call.attributes = &state->attributes;
    int64_t ranks = combination(op, &call);
    if (ranks >= 0) {
        if (!op->plans[ranks] && !compile(op, PLAN, 0, ranks, &error)) return error;
        if ((error = plan_once(state, ranks, &call))) return error;
    }
    if (ranks < 0 || !state->has_code) return run_in_python(op, state->overload, &call, context);
    if (op->has_ranks) cut_steps(op, &call);
    kernel_function *kernel = find_kernel(state, ranks, &error);
    return kernel ? run_kernel(state, kernel, &call, context) : error;
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
