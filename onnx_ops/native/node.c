/* A node of a model before its first run: its attributes, checks, inferred shapes and its kernel. */
#include "library.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static status refuse_attribute(const struct text *title, const struct attribute *a, const struct text *value,
                               const char *rule) {
    struct text text = *title;
    say_string(&text, ": "), say_string(&text, a->name), say_string(&text, " = "), say(&text, value->at, value->used);
    say_string(&text, ": "), say_string(&text, rule);
    return refused(&text);
}

/* The length of a text from ONNX Runtime, which counts the 0 at its end. */
static size_t without_end(const char *text, size_t size) { return size && !text[size - 1] ? size - 1 : size; }

/* A block: struct parameters, a vector for each attribute, and the attributes' values. Other operators' parameters are
 * resolved from it; it is a function's parameters. */
struct block {
    char *at;
    size_t used, room;
};

static struct vector *vectors(const struct block *block) {
    return (struct vector *)(block->at + sizeof(struct parameters));
}

/* Append bytes, which are 0, to the block, which may move; returns their address, or 0 if there is no memory. */
static void *append(struct block *block, size_t size) {
    size = (size + 7) / 8 * 8;
    if (!block->at || size > block->room - block->used) {
        size_t room = 2 * (block->used + size) + 512;
        char *at = malloc(room);
        if (!at) return 0;
        if (block->at) memcpy(at, block->at, block->used);
        free(block->at);
        block->at = at, block->room = room;
    }
    memset(block->at + block->used, 0, size);
    return block->at + (block->used += size) - size;
}

static status begin_block(const struct op *op, struct block *block) {
    *block = (struct block){0, 0, 0};
    return append(block, sizeof(struct parameters) + (size_t)op->attribute_count * sizeof(struct vector))
               ? 0
               : failed("onnx_ops: no room for attributes");
}

static status no_room(void) { return failed("onnx_ops: no room for an attribute"); }

/* Store the vector of attribute k, whose values are the last bytes in the block. */
static void put_vector(struct block *block, int64_t k, int64_t count, size_t bytes) {
    size_t begin = block->used - (bytes + 7) / 8 * 8 - sizeof(struct parameters);
    vectors(block)[k] = (struct vector){count, (int64_t)begin};
}

static status put_default(const struct attribute *a, int64_t k, struct block *block) {
    size_t size = (size_t)a->initial_count * sizeof *a->initials;
    void *place = append(block, size);
    if (!place) return no_room();
    if (size) memcpy(place, a->initials, size);
    return put_vector(block, k, a->value_count, size), NULL;
}

/* Put a tensor into a block: its type, its rank, its shape, its elements. */
static status put_constant(void *value, int64_t k, struct block *block, int *fits) {
    int type;
    size_t rank;
    int64_t copy[MAX_RANK];
    const int64_t *shape;
    void *data;
    status error = read_tensor(value, &type, &rank, copy, &shape);
    int has_type = 0 < type && type < TYPES && item_size[type];
    if (error || !(*fits = has_type && rank <= MAX_RANK)) return error;
    if ((error = GetTensorMutableData(value, &data))) return error;
    int64_t count = elements(shape, (int64_t)rank);
    size_t bytes = (size_t)count * item_size[type], size = (2 + rank) * sizeof *copy + bytes;
    int64_t *place = append(block, size);
    if (!place) return no_room();
    place[0] = type, place[1] = (int64_t)rank;
    memcpy(place + 2, shape, rank * sizeof *shape);
    if (bytes) memcpy(place + 2 + rank, data, bytes);
    return put_vector(block, k, count, size), NULL;
}

static const char *const KINDS[] = {"INT", "INTS", "STRING", "FLOAT", "FLOATS", "STRING", "TENSOR"}; /* onnx's names */
static int is_of_text(const struct attribute *a) { return a->kind == STRING || a->kind == TEXT; }
static int is_list(const struct attribute *a) { return a->kind == INTS || a->kind == FLOATS; }

/* Convert the values of attribute k, which were read to the end of the block: `count` integers, floats or, for a text,
 * bytes. Returns whether the attribute may have these values. */
static int convert_values(const struct attribute *a, int64_t k, void *raw, size_t count, struct block *block) {
    int64_t *numbers = raw;
    int fits = !is_list(a) || (a->shortest <= (int64_t)count && (int64_t)count <= a->longest);
    size_t size = count * sizeof *numbers;
    if (a->kind == STRING) {
        int64_t position = -1;
        for (int64_t c = 0; c < a->choice_count; c++)
            if (strlen(a->choices[c]) == count && !memcmp(a->choices[c], raw, count)) position = c;
        if (position < 0) return 0; /* the text stays, for the error */
        *numbers = position, count = 1, size = sizeof *numbers;
    } else if (a->kind == FLOAT || a->kind == FLOATS) { /* from the last one on, as doubles take more bytes */
        for (size_t n = count; n-- > 0;) {
            double number = ((float *)raw)[n];
            memcpy(&numbers[n], &number, sizeof number);
        }
    } else if (a->kind == TEXT) memset((char *)raw + count, 0, (8 - count % 8) % 8), size = (count + 7) / 8 * 8;
    else
        for (size_t n = 0; n < count; n++) fits = fits && a->least <= numbers[n] && numbers[n] <= a->most;
    block->used = (size_t)((char *)raw - block->at) + size;
    put_vector(block, k, (int64_t)count, size);
    return fits;
}

/* Read attribute k of the node into the block. ONNX Runtime doesn't check the attributes of custom ops, and reads a
 * list of another kind as an empty one. */
static status read_attribute(const struct text *title, const struct attribute *a, int64_t k, const void *info,
                             struct block *block) {
    struct text value = {"", 0};
    size_t size = 0;
    void *raw = 0, *allocator, *tensor;
    int fits = 0;
    status error = KernelInfoGetAttributeArray_int64(info, a->name, 0, &size);
    if (error) {
        ReleaseStatus(error);
        if (!a->required) return put_default(a, k, block);
        return say_string(&value, "None"), refuse_attribute(title, a, &value, "must be given");
    }
    if (a->kind == TENSOR) {
        if ((error = GetAllocatorWithDefaultOptions(&allocator))) return error;
        if (!(error = KernelInfoGetAttribute_tensor(info, a->name, allocator, &tensor))) {
            error = put_constant(tensor, k, block, &fits);
            ReleaseValue(tensor);
            if (error || fits) return error;
        }
    } else {
        if (a->kind == INT || a->kind == FLOAT) size = 1;
        if (a->kind == FLOATS) size = 0, error = KernelInfoGetAttributeArray_float(info, a->name, 0, &size);
        if (is_of_text(a)) error = KernelInfoGetAttribute_string(info, a->name, 0, &size);
        if (!error && !(raw = append(block, (size + 1) * sizeof(int64_t)))) return no_room();
        if (!error && a->kind == INT) error = KernelInfoGetAttribute_int64(info, a->name, raw);
        if (!error && a->kind == INTS) error = KernelInfoGetAttributeArray_int64(info, a->name, raw, &size);
        if (!error && a->kind == FLOAT) error = KernelInfoGetAttribute_float(info, a->name, raw);
        if (!error && a->kind == FLOATS) error = KernelInfoGetAttributeArray_float(info, a->name, raw, &size);
        if (!error && is_of_text(a)) error = KernelInfoGetAttribute_string(info, a->name, raw, &size);
        if (!error && is_of_text(a)) size = without_end(raw, size);
        fits = !error && (is_of_text(a) ? is_text(raw, size) : size > 0);
    }
    if (!fits) {
        if (error) ReleaseStatus(error);
        say_string(&value, "(not of kind "), say_string(&value, KINDS[a->kind]), say_string(&value, ")");
        return refuse_attribute(title, a, &value, a->kind_rule);
    }
    if (convert_values(a, k, raw, size, block)) return 0;
    if (a->kind == STRING) say_quoted(&value, raw, size);
    if (a->kind == INT) say_number(&value, *(int64_t *)raw);
    if (a->kind == INTS) say_vector(&value, raw, (int64_t)size, 0);
    if (a->kind == FLOATS) say_number(&value, (int64_t)size), say_string(&value, " numbers");
    return refuse_attribute(title, a, &value, a->rule);
}

/* Read attribute k into the block when shapes are inferred. Returns 0 if its values can't be read. */
static int infer_attribute(const struct attribute *a, int64_t k, const void *context, struct block *block) {
    static const int TYPES[] = {1, 2, 5, 3, 4, 5}; /* values of OrtOpAttrType, by kind */
    enum { ROOM = 4096 };
    const void *attribute = 0;
    size_t size = 0;
    void *raw;
    status error = ShapeInferContext_GetAttribute(context, a->name, &attribute);
    if (error) ReleaseStatus(error);
    if (error || !attribute) {
        if (!a->required && !(error = put_default(a, k, block))) return 1;
        if (!a->required) ReleaseStatus(error);
        return 0;
    }
    if (a->kind == TENSOR || !(raw = append(block, 2 * ROOM + 8))) return 0;
    if ((error = ReadOpAttr(attribute, TYPES[a->kind], raw, ROOM, &size))) return ReleaseStatus(error), 0;
    size_t count = is_of_text(a)                           ? without_end(raw, size)
                   : a->kind == FLOAT || a->kind == FLOATS ? size / sizeof(float)
                                                           : size / sizeof(int64_t);
    return convert_values(a, k, raw, count, block);
}

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
    void *type_info, *value;
    const void *tensor_info;
    size_t size = 0;
    status error;
    if (input_of(op, k)->presence == OPTIONAL) {
        if ((error = KernelInfo_GetInputName(info, k, 0, &size))) return error;
        if (size < 2) return *is_constant = 1, put_absent(k, call), NULL;
    }
    error = KernelInfoGetConstantInput_tensor(info, k, is_constant, &value);
    if (error || *is_constant) return error ? error : put_tensor(op, title, k, value, call);
    if ((error = KernelInfo_GetInputTypeInfo(info, k, &type_info))) return error;
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

/* Make a kernel's state from a prototype. If all inputs are constant, compute the result, unless it is too large. */
static status new_state(const struct state *prototype, const struct parameters *parameters, size_t parameters_size,
                        struct call *call, int constant, void **kernel) {
    const struct op *op = prototype->op;
    size_t size = offsetof(struct state, parameters) + parameters_size, bytes = 0;
    struct tensor *out = &call->tensors[MAX_INPUTS];
    size_t item = item_size[prototype->overload->types[MAX_INPUTS]];
    if (constant && prototype->kernel) {
        put_output(&call->geometry, out);
        if (0 < out->size && (size_t)out->size <= LARGEST_RESULT / item) bytes = (size_t)out->size * item;
    }
    struct state *state = malloc(size + bytes);
    if (!state && bytes) state = malloc(size), bytes = 0; /* there may be memory when the node runs */
    if (!state) return failed("onnx_ops: no room for a kernel's state");
    memcpy(state, prototype, offsetof(struct state, parameters));
    memcpy(&state->parameters, parameters, parameters_size);
    if (bytes) {
        out->data = (char *)state + size;
        status error = run_tiles(op, prototype->kernel, call, 0);
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

/* Check a node whose operator is no function as far as possible, and find its kernel, which is 0 if Python computes the
 * outputs. is_found stays 0 if Python was interrupted, or if this is only a survey. */
static status find_kernel(struct op *op, const struct overload *overload, const struct text *title,
                          const struct vector attributes[], struct parameters *parameters, struct call *call,
                          int complete, kernel_function **kernel, int *is_found) {
    int64_t returned;
    NEED(op->resolve, RESOLVE, 0, 0);
    memset(parameters, 0, (size_t)op->parameters_size);
    if ((returned = op->resolve(attributes, parameters))) return explained(op, title, &parameters->refusal, returned);
    int64_t position = parameters->kernel_index;
    if (position < 0 || position >= overload->kernel_count) return explained(op, title, 0, -1);
    NEED(op->infer, INFER, 0, 0);
    begin_plan(op, call);
    if ((returned = op->infer(parameters, call))) return explained(op, title, &call->geometry.refusal, returned);
    NEED(op->plans[0], PLAN, 0, 0);
    begin_plan(op, call);
    if (complete && (returned = op->plans[0](parameters, call)))
        return explained(op, title, &call->geometry.refusal, returned);
    if (call->geometry.rank > MAX_RANK) return explained(op, title, 0, -1);
    if (overload->rules[position]) {
        struct text text = *title;
        say_string(&text, ": "), say_string(&text, overload->arguments[position]), say_string(&text, ": "),
            say_string(&text, overload->rules[position]);
        return refused(&text);
    }
    if (!is_of_strings(overload))
        NEED(!is_surveying() && overload->kernels[position], KERNEL, overload - op->overloads, position);
    *kernel = is_of_strings(overload) ? 0 : overload->kernels[position], *is_found = 1;
    return 0;
}

/* Read the attributes and the inputs of a node. */
static status read_node(const struct op *op, const struct text *title, const void *info, struct block *block,
                        struct call *call, int *constants, int *complete) {
    size_t count = (size_t)op->input_count;
    status error = begin_block(op, block);
    for (int64_t k = 0; k < op->attribute_count && !error; k++)
        error = read_attribute(title, &op->attributes[k], k, info, block);
    if (!error) error = KernelInfo_GetInputCount(info, &count);
    if (!error && count > MAX_INPUTS) error = too_many_inputs(op, title, count);
    for (size_t k = 0; k < count && !error; k++) {
        int is_constant = 0;
        error = put_known_input(op, title, k, info, call, &is_constant);
        *constants = *constants && is_constant;
        *complete = *complete && !error && (is_constant || is_known(&call->tensors[k]));
    }
    for (size_t k = count; k < (size_t)op->input_count; k++) put_absent(k, call);
    call->input_count = (int64_t)count;
    return error;
}

status create_kernel(const struct custom_op *custom, const void *unused, const void *info, void **kernel) {
    struct op *op = custom->op;
    union {
        struct parameters parameters;
        char room[MAX_RECORD];
    } resolved;
    struct call call;
    struct block block;
    struct text title = {"", 0};
    struct state state = {.op = op, .overload = custom->overload};
    size_t size = 0;
    int constants = 1, complete = 1;
    status error;
    (void)unused;
    *kernel = 0;
    if ((error = KernelInfo_GetNodeName(info, 0, &size))) return error;
    char *name = calloc(size + 1, 1);
    if (!name) return failed("onnx_ops: no room for a node's name");
    say_title(&title, op);
    error = KernelInfo_GetNodeName(info, name, &size);
    if (!error && (size = without_end(name, size)))
        say_string(&title, " (node "), say_quoted(&title, name, size), say_string(&title, ")");
    free(name);
    if (error) return error;
    error = read_node(op, &title, info, &block, &call, &constants, &complete);
    if (!error && op->is_function) {
        ((struct parameters *)block.at)->kernel_index = (int64_t)block.used; /* the size, which Python reads */
        call.parameters = (struct parameters *)block.at;
        if (complete) error = check_function(op, state.overload, &title, &call);
        else if (is_surveying()) error = compile_all(op, state.overload);
        if (!error) error = new_state(&state, call.parameters, block.used, &call, 0, kernel);
    } else if (!error) {
        int is_found = 0;
        error = find_kernel(op, state.overload, &title, vectors(&block), &resolved.parameters, &call, complete,
                            &state.kernel, &is_found);
        if (is_found)
            error = new_state(&state, &resolved.parameters, (size_t)op->parameters_size, &call, constants, kernel);
    }
    free(block.at);
    return error;
}

/* Tell ONNX Runtime the known dimensions of an output. An unknown dimension gets a name if it has none. */
static status report_output(const struct op *op, size_t k, int type, const struct tensor *tensor,
                            const char *const *names, int64_t name_count, void *context) {
    static atomic_uint unknown;
    const char *symbols[MAX_RANK];
    char new_names[MAX_RANK][40];
    int64_t sizes[MAX_RANK];
    void *info;
    status error;
    (void)op;
    for (int64_t a = 0; a < tensor->rank; a++) {
        sizes[a] = tensor->shape[a] < 0 ? -1 : tensor->shape[a];
        int64_t name = UNKNOWN - 1 - tensor->shape[a];
        symbols[a] = tensor->shape[a] >= 0 ? "" : 0 <= name && name < name_count ? names[name] : new_names[a];
        /* Without a name, an unknown dimension would become a literal -1. A model may have names of another process. */
        snprintf(new_names[a], sizeof new_names[a], "onnx_ops_%llx_%u",
                 (unsigned long long)time(0) ^ (unsigned long long)(uintptr_t)&unknown, atomic_fetch_add(&unknown, 1));
    }
    if ((error = CreateTensorTypeAndShapeInfo(&info))) return error;
    error = SetTensorElementType(info, type);
    if (!error) error = SetDimensions(info, sizes, (size_t)tensor->rank);
    if (!error) error = SetSymbolicDimensions(info, symbols, (size_t)tensor->rank);
    if (!error) error = ShapeInferContext_SetOutputTypeShape(context, k, info);
    ReleaseTensorTypeAndShapeInfo(info);
    return error;
}

/* Read the node's attributes and infer the outputs' ranks and shapes from these and what is known of the inputs.
 * Returns whether they are known: without all attributes, nothing is. */
static int infer_outputs(struct op *op, struct call *call, const void *context) {
    union {
        struct parameters parameters;
        char room[MAX_RECORD];
    } resolved;
    struct block block;
    status error = begin_block(op, &block);
    int known = !error && (!op->is_function || (op->has_rule && !op->has_bound));
    for (int64_t k = 0; k < call->input_count; k++)
        known = known && (!op->is_function || is_known(&call->tensors[k])); /* a rule reads all of them */
    for (int64_t k = 0; k < op->attribute_count && known; k++)
        known = infer_attribute(&op->attributes[k], k, context, &block);
    if (known && op->is_function) {
        call->parameters = (struct parameters *)block.at;
        ((struct parameters *)block.at)->kernel_index = (int64_t)block.used;
        error = plan_function(op, 0, call);
    } else if (known) {
        memset(&resolved, 0, sizeof resolved);
        known = !op->resolve(vectors(&block), &resolved.parameters);
        begin_plan(op, call);
        known = known && !op->infer(&resolved.parameters, call);
        known = known && 0 <= call->geometry.rank && call->geometry.rank <= MAX_RANK;
        if (known) put_output(&call->geometry, &call->tensors[MAX_INPUTS]);
    }
    if (error) ReleaseStatus(error);
    free(block.at);
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
        else if ((error = put_known(op, k, info, &call, op->is_function ? 0 : names, &name_count))) return error;
    }
    for (size_t k = count; k < (size_t)op->input_count; k++) put_absent(k, &call);
    call.input_count = (int64_t)count;
    if (!op->is_function) {
        NEED(op->resolve, RESOLVE, 0, 0);
        NEED(op->infer, INFER, 0, 0);
    }
    if (!infer_outputs(op, &call, context)) return 0;
    for (int64_t k = 0; k < op->output_count && !error; k++) {
        int type = op->outputs[k] < 0 ? (int)op->overloads->types[MAX_INPUTS + k] : types[op->outputs[k]];
        error = report_output(op, (size_t)k, type, &call.tensors[MAX_INPUTS + k], names, name_count, context);
    }
    return error;
}
