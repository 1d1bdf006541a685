/* A node of a model before its first run: checks, inferred shapes and its kernel. */
#include "library.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Put the known dimensions of input k into the call. A dimension with a name is UNKNOWN - 1 - the name's position. */
enum { UNKNOWN = -1 };
static status put_known(const struct op *op, size_t k, const void *info, struct call *call, const char **names,
                        int64_t *name_count) {
    struct tensor *tensor = &call->tensors[k];
    const char *symbols[MAX_RANK];
    size_t rank;
    status error = GetDimensionsCount(info, &rank);
    tensor->rank = 0; /* ONNX Runtime reports an unknown rank as 0, too */
    if (error || rank > MAX_RANK) return error;
    if ((error = GetDimensions(info, tensor->shape, rank))) return error;
    if (names && (error = GetSymbolicDimensions(info, symbols, rank))) return error;
    for (size_t a = 0; a < rank; a++)
        if (tensor->shape[a] < 0) {
            tensor->shape[a] = UNKNOWN;
            if (names && symbols[a] && *symbols[a]) names[*name_count] = symbols[a], tensor->shape[a] -= ++*name_count;
        }
    tensor->rank = (int64_t)rank;
    if (input_of(op, k)->wants_values) { /* only their number is known */
        tensor->rank = rank == 1 && 0 <= tensor->shape[0] && tensor->shape[0] <= MAX_RANK ? tensor->shape[0] : 0;
        for (int64_t a = 0; a < tensor->rank; a++) tensor->shape[a] = UNKNOWN;
    }
    return 0;
}

/* Put input k of a node into the call: completely if it is constant, else its known dimensions. */
static status put_known_input(const struct op *op, const struct text *title, size_t k, const void *info,
                              struct call *call, int *is_constant) {
    void *type_info = 0, *value = 0;
    const void *tensor_info;
    size_t size = 0;
    status error;
    if (input_of(op, k)->presence == OPTIONAL) {
        if ((error = KernelInfo_GetInputName(info, k, 0, &size))) return error;
        if (size < 2) return *is_constant = 1, put_absent(k, call), NULL;
    }
    error = KernelInfoGetConstantInput_tensor(info, k, is_constant, &value);
    if (error || *is_constant) return error ? error : put_tensor(op, title, k, value, call);
    if ((error = made(KernelInfo_GetInputTypeInfo(info, k, &type_info), &type_info))) return error;
    error = CastTypeInfoToTensorInfo(type_info, (void **)&tensor_info);
    if (!error) error = put_known(op, k, tensor_info, call, 0, 0);
    ReleaseTypeInfo(type_info);
    return error;
}

/* Whether everything that a plan reads of an input is known, if it isn't constant. */
static int is_known(const struct tensor *tensor) {
    int complete = tensor->rank != 0; /* rank 0 may mean an unknown rank */
    for (int64_t a = 0; a < tensor->rank; a++) complete = complete && tensor->shape[a] >= 0;
    return complete;
}

/* Make a kernel's state from a prototype. With a kernel, which it has if all inputs are constant, compute the result,
 * unless it is too large. */
static status new_state(const struct state *prototype, struct call *call, kernel_function *constant, void **kernel) {
    const struct op *op = prototype->op;
    const struct block *attributes = call->attributes;
    size_t header = offsetof(struct state, attributes), bytes = 0;
    size_t place = (header + (size_t)attributes->size + LINE - 1) / LINE * LINE;
    size_t size = place + offsetof(struct call, geometry) + (size_t)op->geometry_size;
    struct tensor *out = &call->tensors[MAX_INPUTS];
    size_t item = item_size[prototype->overload->types[MAX_INPUTS]];
    if (constant && 0 < out->size && (size_t)out->size <= LARGEST_RESULT / item) bytes = (size_t)out->size * item;
    struct state *state = malloc(size + bytes);
    if (!state && bytes) state = malloc(size), bytes = 0; /* there may be memory when the node runs */
    if (!state) return failed("onnx_ops: no room for a kernel's state");
    memcpy(state, prototype, header);
    memcpy(&state->attributes, attributes, (size_t)attributes->size);
    state->planned = (struct call *)((char *)state + place);
    state->planned->input_count = -1; /* as no call has */
    if (bytes) {
        out->data = (char *)state + size;
        status error = run_tiles(op, constant, call, 0);
        if (error) ReleaseStatus(error);
        else {
            state->result = out->data, state->result_size = bytes, state->rank = out->rank;
            memcpy(state->shape, out->shape, sizeof state->shape);
            atomic_fetch_add(&prototype->op->results_made, 1);
        }
    }
    atomic_fetch_add(&prototype->op->kernels_made, 1);
    *kernel = state;
    return 0;
}

/* Which kernel the attributes choose. */
static int64_t choice(const struct op *op, const struct block *attributes) {
    if (op->chooser < 0) return 0;
    const int64_t *position = (const int64_t *)((const char *)attributes + attributes->vectors[op->chooser].offset);
    return op->choices[*position];
}

/* Check a node as far as possible, and have its plan and its kernel compiled, which stays 0 if it isn't known yet.
 * complete: whether all that a plan reads is known. is_checked stays 0 if Python was interrupted, or if this is only a
 * survey. */
static status check_node(const struct state *state, const struct text *title, struct call *call, int complete,
                         kernel_function **kernel, int *is_checked) {
    const struct op *op = state->op;
    const struct overload *overload = state->overload;
    status error = 0;
    int64_t ranks = complete || !op->has_ranks ? combination(op, call) : -1;
    if (!op->has_ranks) NEED(op->infer, INFER, 0, 0);
    if (!op->has_ranks && !complete) error = infer_shapes(op, title, call);
    if (error) return error;
    if (ranks >= 0) NEED(op->plans[ranks], PLAN, 0, ranks);
    if (op->has_shapes && complete) error = plan(op, title, ranks, call);
    if (error) return error;
    if (op->combination_count && overload->rules[state->choice]) {
        struct text text = *title;
        say_string(&text, ": "), say_string(&text, overload->arguments[state->choice]), say_string(&text, ": "),
            say_string(&text, overload->rules[state->choice]);
        return refused(&text);
    }
    *is_checked = !state->has_code || ranks < 0;
    if (!state->has_code) return 0;
    if (is_surveying() && op->has_ranks && !complete) { /* it may need the kernels for all ranks */
        int available;
        for (int64_t k = state->choice; k < overload->kernel_count && !error; k += op->kernel_count)
            error = compile(op, KERNEL, overload - op->overloads, k, &available);
        return error;
    }
    if (ranks < 0) return 0;
    int64_t position = ranks * op->kernel_count + state->choice;
    NEED(!is_surveying() && overload->kernels[position], KERNEL, overload - op->overloads, position);
    *kernel = overload->kernels[position], *is_checked = 1;
    return 0;
}

/* Whether a node with constant inputs is computed when its session is made. */
static int can_be_constant(const struct op *op) {
    return op->output_count == 1 && !op->has_bound && !op->has_ranks;
}

status create_kernel(const struct custom_op *custom, const void *unused, const void *info, void **kernel) {
    struct op *op = custom->op;
    struct call call;
    struct values values = {0, 0, 0};
    struct text title = {"", 0};
    struct state state = {.op = op, .overload = custom->overload};
    kernel_function *function = 0;
    size_t size = 0, count = 0;
    int constants = 1, complete = 1, is_checked = 0;
    status error;
    (void)unused;
    *kernel = 0;
    make_spare_statuses();
    if ((error = KernelInfo_GetNodeName(info, 0, &size))) return error;
    char *name = calloc(size + 1, 1);
    if (!name) return failed("onnx_ops: no room for a node's name");
    say_title(&title, op);
    error = KernelInfo_GetNodeName(info, name, &size);
    if (!error && (size = without_end(name, size)))
        say_string(&title, " (node "), say_quoted(&title, name, size), say_string(&title, ")");
    free(name);
    if (!error) error = read_attributes(op, &title, read_from_node, info, &values);
    if (!error) error = KernelInfo_GetInputCount(info, &count);
    if (!error && count > MAX_INPUTS) error = too_many_inputs(op, &title, count);
    for (size_t k = 0; k < count && !error; k++) {
        int is_constant = 0;
        error = put_known_input(op, &title, k, info, &call, &is_constant);
        constants = constants && is_constant;
        complete = complete && !error && (is_constant || is_known(&call.tensors[k]));
    }
    for (size_t k = count; k < (size_t)op->input_count; k++) put_absent(k, &call);
    call.input_count = (int64_t)count, call.attributes = (struct block *)values.at;
    if (!error) {
        state.choice = choice(op, call.attributes);
        state.has_code = op->combination_count && state.overload->has_code[state.choice];
        error = check_node(&state, &title, &call, complete, &function, &is_checked);
    }
    if (!error && is_checked) error = new_state(&state, &call, constants && can_be_constant(op) ? function : 0, kernel);
    free(values.at);
    return error;
}

/* Tell ONNX Runtime the known dimensions of an output. An unknown dimension gets a name if it has none. */
static status report_output(size_t k, int type, const struct tensor *tensor, const char *const *names,
                            int64_t name_count, void *context) {
    static atomic_uint unknown;
    const char *symbols[MAX_RANK];
    char new_names[MAX_RANK][40];
    int64_t sizes[MAX_RANK];
    void *info = 0;
    status error;
    for (int64_t a = 0; a < tensor->rank; a++) {
        sizes[a] = tensor->shape[a] < 0 ? -1 : tensor->shape[a];
        int64_t name = tensor->shape[a] < 0 ? UNKNOWN - 1 - tensor->shape[a] : -1;
        symbols[a] = tensor->shape[a] >= 0 ? "" : 0 <= name && name < name_count ? names[name] : new_names[a];
        /* Without a name, an unknown dimension would become a literal -1. A model may have names of another process. */
        snprintf(new_names[a], sizeof new_names[a], "onnx_ops_%llx_%u",
                 (unsigned long long)time(0) ^ (unsigned long long)(uintptr_t)&unknown, atomic_fetch_add(&unknown, 1));
    }
    if ((error = made(CreateTensorTypeAndShapeInfo(&info), &info))) return error;
    error = SetTensorElementType(info, type);
    if (!error) error = SetDimensions(info, sizes, (size_t)tensor->rank);
    if (!error) error = SetSymbolicDimensions(info, symbols, (size_t)tensor->rank);
    if (!error) error = ShapeInferContext_SetOutputTypeShape(context, k, info);
    ReleaseTensorTypeAndShapeInfo(info);
    return error;
}

/* Read the node's attributes and infer the outputs' shapes from these and what is known of the inputs. Returns whether
 * they are known: without all attributes, nothing is. */
static int infer_outputs(const struct op *op, struct call *call, const void *context) {
    struct values values = {0, 0, 0};
    int known = !op->has_ranks || (op->has_shapes && !op->has_bound);
    for (int64_t k = 0; k < call->input_count; k++)
        known = known && (!op->has_ranks || is_known(&call->tensors[k])); /* a rule reads all of them */
    if (!known) return 0;
    struct text title = {"", 0}; /* nobody reads the error */
    status error = read_attributes(op, &title, read_from_inference, context, &values);
    int64_t ranks = op->has_ranks ? combination(op, call) : -1;
    int available = 1;
    call->attributes = (struct block *)values.at;
    if (!error && ranks >= 0 && !op->plans[ranks]) error = compile(op, PLAN, 0, ranks, &available);
    if (!error && available) error = op->has_ranks ? plan(op, 0, ranks, call) : infer_shapes(op, 0, call);
    if (error) ReleaseStatus(error);
    free(values.at);
    return !error && available;
}

/* InferOutputShapeFn: report what is known of the outputs before any run. */
status infer(const struct custom_op *custom, void *context) {
    struct op *op = custom->op;
    const char *names[MAX_INPUTS * MAX_RANK];
    int64_t name_count = 0;
    size_t count = (size_t)op->input_count;
    int types[MAX_INPUTS] = {0}; /* by input; 0 for inputs that the node doesn't have */
    struct call call;
    void *info;
    status error = ShapeInferContext_GetInputCount(context, &count);
    if (error || count > MAX_INPUTS) return error;
    for (size_t k = 0; k < count; k++) {
        if ((error = ShapeInferContext_GetInputTypeShape(context, k, &info))) return error;
        if ((error = GetTensorElementType(info, &types[k]))) return error;
        if (!types[k]) put_absent(k, &call);
        else if ((error = put_known(op, k, info, &call, op->has_ranks ? 0 : names, &name_count))) return error;
    }
    for (size_t k = count; k < (size_t)op->input_count; k++) put_absent(k, &call);
    call.input_count = (int64_t)count;
    if (!op->has_ranks) NEED(op->infer, INFER, 0, 0); /* with its error, unlike others */
    if (!infer_outputs(op, &call, context)) return 0;
    for (int64_t k = 0; k < op->output_count && !error; k++) {
        const struct tensor *tensor = &call.tensors[MAX_INPUTS + k];
        int type = op->outputs[k] < 0 ? (int)op->overloads->types[MAX_INPUTS + k] : types[op->outputs[k]];
        if (0 <= tensor->rank && tensor->rank <= MAX_RANK)
            error = report_output((size_t)k, type, tensor, names, name_count, context);
    }
    return error;
}
