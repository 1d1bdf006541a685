/* A node of a model before its first run: checks, inferred shapes and its kernel. */
#include "node.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LARGEST_RESULT = 1 << 26 }; /* bytes of a constant result */

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
            if (names && *symbols[a]) names[*name_count] = symbols[a], tensor->shape[a] -= ++*name_count;
        }
    tensor->rank = (int64_t)rank;
    if (input_of(op, k)->wants_values) { /* only their number is known */
        tensor->rank = rank == 1 && 0 <= tensor->shape[0] && tensor->shape[0] <= MAX_RANK ? tensor->shape[0] : 0;
        for (int64_t a = 0; a < tensor->rank; a++) tensor->shape[a] = UNKNOWN;
    }
    return 0;
}

/* Whether everything that a plan reads of an input is known, if it isn't constant. */
static int is_known(const struct tensor *tensor) {
    int complete = tensor->rank != 0; /* rank 0 may mean an unknown rank */
    for (int64_t a = 0; a < tensor->rank; a++) complete = complete && tensor->shape[a] >= 0;
    return complete;
}

/* What is known of a node when its session is made. */
enum { NO_KERNEL = -1, OPEN = -2 };
struct node {
    const void *info;
    struct name name;
    struct block *attributes;
    struct call *call;
    int is_constant, is_complete; /* whether all inputs are constant; whether all that a plan reads of them is known */
    int64_t ranks;                /* the combination of the inputs' ranks, NO_KERNEL, or OPEN if it isn't known yet */
    kernel_function *kernel;      /* 0 if it isn't known yet, or if Python computes */
    int is_ready;                 /* not if Python was interrupted, nor in a survey */
    struct state state;
};

static status read_name(struct node *node) {
    struct name *name = &node->name;
    status error = KernelInfo_GetNodeName(node->info, 0, &name->size);
    if (error) return error;
    if (!(name->at = calloc(name->size + 1, 1))) return failed("onnx_ops: no room for a node's name");
    error = KernelInfo_GetNodeName(node->info, name->at, &name->size);
    return name->size = without_end(name->at, name->size), error;
}

/* Put input k into the call: completely if it is constant, else its known dimensions. */
static status read_input(struct node *node, size_t k) {
    const struct op *op = node->state.op;
    void *type_info = 0, *value = 0;
    const void *tensor_info;
    size_t size = 0;
    int is_constant = 0;
    status error;
    if (input_of(op, k)->presence == OPTIONAL) {
        if ((error = KernelInfo_GetInputName(node->info, k, 0, &size))) return error;
        if (size < 2) return put_absent(k, node->call), NULL;
    }
    error = KernelInfoGetConstantInput_tensor(node->info, k, &is_constant, &value);
    if (error || is_constant) return error ? error : put_tensor(op, &node->name, k, value, node->call);
    node->is_constant = 0;
    if ((error = made(KernelInfo_GetInputTypeInfo(node->info, k, &type_info), &type_info))) return error;
    error = CastTypeInfoToTensorInfo(type_info, (void **)&tensor_info);
    if (!error) error = put_known(op, k, tensor_info, node->call, 0, 0);
    ReleaseTypeInfo(type_info);
    node->is_complete = node->is_complete && !error && is_known(&node->call->tensors[k]);
    return error;
}

static status read_inputs(struct node *node) {
    size_t count = 0;
    status error = KernelInfo_GetInputCount(node->info, &count);
    const int64_t given = (int64_t)count, most = MAX_INPUTS;
    if (!error && given > most)
        error = refuse_numbers(node->state.op, &node->name, "inputs", &given, -1, "must be at most", &most);
    for (size_t k = 0; k < count && !error; k++) error = read_input(node, k);
    if (!error) put_count(node->state.op, count, node->call);
    return error;
}

/* Choose the kernel by the attributes, and the combination of ranks by the inputs. */
static void choose(struct node *node) {
    struct state *state = &node->state;
    const struct op *op = state->op;
    struct block *block = node->attributes;
    node->call->attributes = block;
    if (op->chooser >= 0) state->choice = op->choices[*(int64_t *)((char *)block + block->vectors[op->chooser].offset)];
    state->has_code = op->combination_count && state->overload->has_code[state->choice];
    node->ranks = op->has_ranks && !node->is_complete ? OPEN : combination(op, node->call);
}

/* Have `infer` compiled. Plans for stated ranks read only known sizes, and have none. Returns 0 with an error, or after
 * an interrupt. */
static int prepare_inference(struct op *op, status *error) {
    return op->has_ranks || op->infer || compile(op, INFER, 0, 0, error);
}

/* Check the shapes as far as they are known, and have what checks them compiled. Returns whether that was done: if not,
 * there is an error, or Python was interrupted. */
static int check_shapes(struct node *node, status *error) {
    struct op *op = node->state.op;
    const int64_t ranks = node->ranks;
    if (!prepare_inference(op, error)) return 0;
    if (op->infer && !node->is_complete) *error = infer_shapes(op, &node->name, node->call);
    if (*error) return 0;
    if (ranks >= 0 && !op->plans[ranks] && !compile(op, PLAN, 0, ranks, error)) return 0;
    if (op->has_shapes && node->is_complete) *error = plan(op, &node->name, ranks, node->call);
    return !*error;
}

/* Refuse element types that the operator doesn't take. */
static status check_types(const struct node *node) {
    const struct op *op = node->state.op;
    const struct overload *overload = node->state.overload;
    const int64_t choice = node->state.choice;
    struct refusal refusal = {.argument = overload->arguments[choice], .rule = overload->rules[choice]};
    if (!op->combination_count || !refusal.rule) return 0;
    return refuse(op, &node->name, &refusal, overload->refused[choice]);
}

/* List for a survey the kernel that the node needs, or while the ranks are open those that it may need. */
static status list_kernels(const struct node *node) {
    const struct state *state = &node->state;
    const int64_t step = state->op->kernel_count, first = node->ranks == OPEN ? 0 : node->ranks;
    const int64_t end = node->ranks == OPEN ? state->overload->kernel_count : (first + 1) * step;
    status error = 0;
    for (int64_t k = first * step + state->choice; k < end && !error; k += step)
        compile(state->op, KERNEL, state->overload - state->op->overloads, k, &error);
    return error;
}

/* Check the node as far as possible, and have its plan and its kernel compiled. */
static status check_node(struct node *node) {
    const struct state *state = &node->state;
    status error = 0;
    if (!check_shapes(node, &error)) return error;
    if ((error = check_types(node))) return error;
    if (state->has_code && node->ranks != NO_KERNEL) {
        if (is_surveying()) return list_kernels(node);
        if (node->ranks != OPEN && !(node->kernel = find_kernel(state, node->ranks, &error))) return error;
    }
    return node->is_ready = 1, NULL;
}

/* Make the state of the node's kernel, with the result if the node is constant and the result isn't too large. */
static status new_state(const struct node *node, void **kernel) {
    struct op *op = node->state.op;
    struct tensor *out = &node->call->tensors[MAX_INPUTS];
    size_t header = offsetof(struct state, attributes), attributes_size = (size_t)node->attributes->size, bytes = 0;
    size_t place = (header + attributes_size + LINE - 1) / LINE * LINE;
    size_t size = place + offsetof(struct call, geometry) + (size_t)op->geometry_size;
    int has_result = node->kernel && node->is_constant && op->output_count == 1 && !op->has_ranks;
    size_t item = item_size[node->state.overload->types[MAX_INPUTS]];
    if (has_result && 0 < out->size && (size_t)out->size <= LARGEST_RESULT / item) bytes = (size_t)out->size * item;
    struct state *state = malloc(size + bytes);
    if (!state && bytes) state = malloc(size), bytes = 0; /* there may be memory when the node runs */
    if (!state) return failed("onnx_ops: no room for a kernel's state");
    memcpy(state, &node->state, header);
    memcpy(&state->attributes, node->attributes, attributes_size);
    state->planned = (struct call *)((char *)state + place);
    state->planned->input_count = -1; /* as no call has */
    if (bytes) {
        out->data = (char *)state + size;
        status error = run_tiles(op, node->kernel, node->call, 0);
        if (error) ReleaseStatus(error);
        else {
            state->result = *out, state->result_size = bytes;
            atomic_fetch_add(&op->results_made, 1);
        }
    }
    atomic_fetch_add(&op->kernels_made, 1);
    return *kernel = state, NULL;
}

/* CreateKernelV2. The kernel is 0 if the node can't run. */
status create_kernel(const struct custom_op *custom, const void *unused, const void *info, void **kernel) {
    struct call call;
    struct node node = {info, .call = &call, .is_constant = 1, .is_complete = 1};
    (void)unused;
    node.state.op = custom->op, node.state.overload = custom->overload;
    *kernel = 0;
    make_spare_statuses();
    status error = read_name(&node);
    if (!error) error = read_attributes(custom->op, &node.name, read_from_node, info, &node.attributes);
    if (!error) error = read_inputs(&node);
    if (!error) choose(&node), error = check_node(&node);
    if (!error && node.is_ready) error = new_state(&node, kernel);
    free(node.attributes), free(node.name.at);
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
    int known = op->infer || (op->has_shapes && !op->has_bound);
    for (int64_t k = 0; k < call->input_count; k++)
        known &= op->infer || is_known(&call->tensors[k]); /* a plan reads all of them */
    if (!known) return 0;
    struct block *attributes = 0;
    status error = read_attributes(op, &UNREAD, read_from_inference, context, &attributes);
    int64_t ranks = op->infer ? -1 : combination(op, call);
    call->attributes = attributes;
    known = !error && (ranks < 0 || op->plans[ranks] || compile(op, PLAN, 0, ranks, &error));
    if (known) error = op->infer ? infer_shapes(op, &UNREAD, call) : plan(op, &UNREAD, ranks, call);
    if (error) ReleaseStatus(error);
    free(attributes);
    return known && !error;
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
        else if ((error = put_known(op, k, info, &call, names, &name_count))) return error;
    }
    put_count(op, count, &call);
    if (!prepare_inference(op, &error)) return error; /* unlike other errors */
    if (!infer_outputs(op, &call, context)) return 0;
    for (int64_t k = 0; k < op->output_count && !error; k++) {
        const struct tensor *tensor = &call.tensors[MAX_INPUTS + k];
        int type = op->outputs[k] < 0 ? (int)op->overloads->types[MAX_INPUTS + k] : types[op->outputs[k]];
        if (0 <= tensor->rank && tensor->rank <= MAX_RANK)
            error = report_output((size_t)k, type, tensor, names, name_count, context);
    }
    return error;
}
