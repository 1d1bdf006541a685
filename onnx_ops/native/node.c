/* A node of a model, before its first run: what can be checked, resolved and compiled. */
#include "library.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static status wrong_attribute(const struct text *title, const struct attribute *a, const struct text *value,
                              const char *rule) {
    struct text text = *title;
    say_words(&text, ": "), say_words(&text, a->name), say_words(&text, " = "), say(&text, value->at, value->used);
    say_words(&text, ": "), say_words(&text, rule);
    return refused(&text);
}

/* The length of a text from ONNX Runtime, which counts the 0 at its end. */
static size_t without_end(const char *text, size_t size) { return size && !text[size - 1] ? size - 1 : size; }

/* What a function's parameters are, and what others are resolved from: struct parameters, the vectors of the
 * attributes, and their values. */
struct block {
    char *at;
    size_t used, room;
};

static struct vector *vectors(const struct block *block) {
    return (struct vector *)(block->at + sizeof(struct parameters));
}

/* So many more bytes, 0 where there is no room. The block may move. */
static void *more(struct block *block, size_t size) {
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
    return more(block, sizeof(struct parameters) + (size_t)op->attribute_count * sizeof(struct vector))
               ? 0
               : failed("onnx_ops: no room for attributes");
}

static status no_room(void) { return failed("onnx_ops: no room for an attribute"); }

/* Say where the values of attribute k are: the last ones in the block. */
static void note_values(struct block *block, int64_t k, int64_t count, size_t bytes) {
    size_t begin = block->used - (bytes + 7) / 8 * 8 - sizeof(struct parameters);
    vectors(block)[k] = (struct vector){count, (int64_t)begin};
}

static status put_default(const struct attribute *a, int64_t k, struct block *block) {
    size_t size = (size_t)a->initial_count * sizeof *a->initials;
    void *place = more(block, size);
    if (!place) return no_room();
    if (size) memcpy(place, a->initials, size);
    return note_values(block, k, a->value_count, size), NULL;
}

/* A tensor in a block: its type, its rank, its shape, its elements. */
static status put_constant(void *value, int64_t k, struct block *block, int *fits) {
    int type;
    size_t rank;
    int64_t copy[MAX_RANK];
    const int64_t *shape;
    void *data;
    status wrong = read_tensor(value, &type, &rank, copy, &shape);
    if (wrong || !(*fits = type != STRINGS && rank <= MAX_RANK)) return wrong;
    if ((wrong = GetTensorMutableData(value, &data))) return wrong;
    int64_t count = elements(shape, (int64_t)rank);
    size_t bytes = (size_t)count * item_size[type], size = (2 + rank) * sizeof *copy + bytes;
    int64_t *place = more(block, size);
    if (!place) return no_room();
    place[0] = type, place[1] = (int64_t)rank;
    memcpy(place + 2, shape, rank * sizeof *shape);
    if (bytes) memcpy(place + 2 + rank, data, bytes);
    return note_values(block, k, count, size), NULL;
}

static int is_of_text(const struct attribute *a) { return a->kind == STRING || a->kind == TEXT; }
static int is_list(const struct attribute *a) { return a->kind == INTS || a->kind == FLOATS; }

/* Take over the values of attribute k as they were read to the end of the block: so many integers, floats or, of a
 * text, bytes. Whether they are what the attribute may be. */
static int take_values(const struct attribute *a, int64_t k, void *raw, size_t count, struct block *block) {
    int64_t *numbers = raw;
    int fits = !is_list(a) || (a->shortest <= (int64_t)count && (int64_t)count <= a->longest);
    size_t size = count * sizeof *numbers;
    if (a->kind == STRING) {
        int64_t position = -1;
        for (int64_t c = 0; c < a->choice_count; c++)
            if (strlen(a->choices[c]) == count && !memcmp(a->choices[c], raw, count)) position = c;
        if (position < 0) return 0; /* the text stays, for an error */
        *numbers = position, count = 1, size = sizeof *numbers;
    } else if (a->kind == FLOAT || a->kind == FLOATS) { /* the last first: they lie within what they become */
        for (size_t n = count; n-- > 0;) {
            double number = ((float *)raw)[n];
            memcpy(&numbers[n], &number, sizeof number);
        }
    } else if (a->kind == TEXT) memset((char *)raw + count, 0, (8 - count % 8) % 8), size = (count + 7) / 8 * 8;
    else
        for (size_t n = 0; n < count; n++) fits = fits && a->least <= numbers[n] && numbers[n] <= a->most;
    block->used = (size_t)((char *)raw - block->at) + size;
    note_values(block, k, (int64_t)count, size);
    return fits;
}

/* Put the values of attribute k of the node into the block. ONNX Runtime checks no attributes of custom ops, and reads
 * a list of another kind as an empty one. */
static status read_attribute(const struct text *title, const struct attribute *a, int64_t k, const void *info,
                             struct block *block) {
    struct text value = {"", 0};
    size_t size = 0;
    void *raw = 0, *allocator, *tensor;
    int fits = 0;
    status wrong = KernelInfoGetAttributeArray_int64(info, a->name, 0, &size);
    if (wrong) {
        ReleaseStatus(wrong);
        if (!a->required) return put_default(a, k, block);
        return say_words(&value, "None"), wrong_attribute(title, a, &value, "must be given");
    }
    if (a->kind == TENSOR) {
        if ((wrong = GetAllocatorWithDefaultOptions(&allocator))) return wrong;
        if (!(wrong = KernelInfoGetAttribute_tensor(info, a->name, allocator, &tensor))) {
            wrong = put_constant(tensor, k, block, &fits);
            ReleaseValue(tensor);
            if (wrong || fits) return wrong;
        }
    } else {
        if (a->kind == INT || a->kind == FLOAT) size = 1;
        if (a->kind == FLOATS) size = 0, wrong = KernelInfoGetAttributeArray_float(info, a->name, 0, &size);
        if (is_of_text(a)) wrong = KernelInfoGetAttribute_string(info, a->name, 0, &size);
        if (!wrong && !(raw = more(block, (size + 1) * sizeof(int64_t)))) return no_room();
        if (!wrong && a->kind == INT) wrong = KernelInfoGetAttribute_int64(info, a->name, raw);
        if (!wrong && a->kind == INTS) wrong = KernelInfoGetAttributeArray_int64(info, a->name, raw, &size);
        if (!wrong && a->kind == FLOAT) wrong = KernelInfoGetAttribute_float(info, a->name, raw);
        if (!wrong && a->kind == FLOATS) wrong = KernelInfoGetAttributeArray_float(info, a->name, raw, &size);
        if (!wrong && is_of_text(a)) wrong = KernelInfoGetAttribute_string(info, a->name, raw, &size);
        if (!wrong && is_of_text(a)) size = without_end(raw, size);
        fits = !wrong && (is_of_text(a) ? is_text(raw, size) : size > 0);
    }
    if (!fits) {
        if (wrong) ReleaseStatus(wrong);
        say_words(&value, "(of another kind)");
        return wrong_attribute(title, a, &value, a->kind_rule);
    }
    if (take_values(a, k, raw, size, block)) return 0;
    if (a->kind == STRING) say_quoted(&value, raw, size);
    if (a->kind == INT) say_number(&value, *(int64_t *)raw);
    if (a->kind == INTS) say_vector(&value, raw, (int64_t)size);
    if (a->kind == FLOATS) say_number(&value, (int64_t)size), say_words(&value, " numbers");
    return wrong_attribute(title, a, &value, a->rule);
}

/* The same where shapes are inferred; 0: it can't be told. */
static int infer_attribute(const struct attribute *a, int64_t k, const void *context, struct block *block) {
    static const int TYPES[] = {1, 2, 5, 3, 4, 5}; /* of OrtOpAttrType, by kind */
    enum { ROOM = 4096 };
    const void *given = 0;
    size_t size = 0;
    void *raw;
    status wrong = ShapeInferContext_GetAttribute(context, a->name, &given);
    if (wrong) ReleaseStatus(wrong);
    if (wrong || !given) {
        if (!a->required && !(wrong = put_default(a, k, block))) return 1;
        if (!a->required) ReleaseStatus(wrong);
        return 0;
    }
    if (a->kind == TENSOR || !(raw = more(block, 2 * ROOM + 8))) return 0;
    if ((wrong = ReadOpAttr(given, TYPES[a->kind], raw, ROOM, &size))) return ReleaseStatus(wrong), 0;
    size_t count = is_of_text(a)                           ? without_end(raw, size)
                   : a->kind == FLOAT || a->kind == FLOATS ? size / sizeof(float)
                                                           : size / sizeof(int64_t);
    return take_values(a, k, raw, count, block);
}

/* Put what is known of a shape into the call: a dimension that has a name is the name's position below UNKNOWN. */
enum { UNKNOWN = -1 };
static status put_known(const struct op *op, size_t k, const void *info, struct call *call, const char **names,
                        int64_t *name_count) {
    struct tensor *tensor = &call->tensors[k];
    const char *symbols[MAX_RANK];
    size_t rank;
    status wrong = GetDimensionsCount(info, &rank);
    tensor->rank = 0; /* which is also what an unknown rank is reported as */
    if (wrong || rank > MAX_RANK) return wrong;
    if ((wrong = GetDimensions(info, tensor->shape, rank))) return wrong;
    if (names && (wrong = GetSymbolicDimensions(info, symbols, rank))) return wrong;
    for (size_t a = 0; a < rank; a++)
        if (tensor->shape[a] < 0) {
            tensor->shape[a] = UNKNOWN;
            if (names && symbols[a] && *symbols[a]) names[*name_count] = symbols[a], tensor->shape[a] -= ++*name_count;
        }
    tensor->rank = (int64_t)rank;
    if (input_of(op, k)->wants_values) { /* of which only their number is known */
        tensor->rank = rank == 1 && 0 <= tensor->shape[0] && tensor->shape[0] <= MAX_RANK ? tensor->shape[0] : 0;
        for (int64_t a = 0; a < tensor->rank; a++) tensor->shape[a] = UNKNOWN;
    }
    return 0;
}

/* The same of a node's input, or all of it if it is constant. */
static status put_known_input(const struct op *op, const struct text *title, size_t k, const void *info,
                              struct call *call, int *is_constant) {
    void *type_info, *value;
    const void *tensor_info;
    size_t size = 0;
    status wrong;
    if (input_of(op, k)->presence == OPTIONAL) {
        if ((wrong = KernelInfo_GetInputName(info, k, 0, &size))) return wrong;
        if (size < 2) return *is_constant = 1, put_absent(k, call), NULL;
    }
    wrong = KernelInfoGetConstantInput_tensor(info, k, is_constant, &value);
    if (wrong || *is_constant) return wrong ? wrong : put_tensor(op, title, k, value, call);
    if ((wrong = KernelInfo_GetInputTypeInfo(info, k, &type_info))) return wrong;
    wrong = CastTypeInfoToTensorInfo(type_info, (void **)&tensor_info);
    if (!wrong) wrong = put_known(op, k, tensor_info, call, 0, 0);
    ReleaseTypeInfo(type_info);
    return wrong;
}

/* Whether a plan can be told of an input, none of whose values are known, all that it wants. */
static int is_known(const struct tensor *tensor) {
    int known = tensor->rank != 0; /* which may be an unknown one */
    for (int64_t a = 0; a < tensor->rank; a++) known = known && tensor->shape[a] >= 0;
    return known;
}

/* A kernel's state, with the result if the inputs are all constant and it is not too large to be kept. */
static status new_state(const struct state *made, const struct parameters *parameters, size_t parameters_size,
                        struct call *call, int constant, void **kernel) {
    const struct op *op = made->op;
    size_t size = offsetof(struct state, parameters) + parameters_size, bytes = 0;
    struct tensor *out = &call->tensors[MAX_INPUTS];
    size_t item = item_size[made->overload->types[MAX_INPUTS]];
    if (constant && made->kernel) {
        put_output(&call->geometry, out);
        if (0 < out->size && (size_t)out->size <= LARGEST_RESULT / item) bytes = (size_t)out->size * item;
    }
    struct state *state = malloc(size + bytes);
    if (!state && bytes) state = malloc(size), bytes = 0; /* there may be room when the node runs */
    if (!state) return failed("onnx_ops: no room for a kernel's state");
    memcpy(state, made, offsetof(struct state, parameters));
    memcpy(&state->parameters, parameters, parameters_size);
    if (bytes) {
        out->data = (char *)state + size;
        status wrong = run_tiles(op, made->kernel, call, 0);
        if (wrong) ReleaseStatus(wrong);
        else {
            state->result = out->data, state->result_size = bytes, state->rank = out->rank;
            memcpy(state->shape, out->shape, sizeof state->shape);
            atomic_fetch_add(&made->op->results_made, 1);
        }
    }
    atomic_fetch_add(&made->op->kernels_made, 1);
    *kernel = state;
    return 0;
}

/* The kernel of a node of an operator that has a plan, after all that can be said against the node; 0: Python's.
 * Not found: Python was interrupted, or only surveys. */
static status find_kernel(struct op *op, const struct overload *overload, const struct text *title,
                          const struct vector attributes[], struct parameters *parameters, struct call *call,
                          int complete, kernel_function **kernel, int *is_found) {
    int64_t returned;
    NEED(op->resolve, RESOLVE, 0, 0);
    memset(parameters, 0, (size_t)op->parameters_size);
    if ((returned = op->resolve(attributes, parameters))) return explained(op, title, &parameters->refusal, returned);
    int64_t position = parameters->kernel;
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
        say_words(&text, ": "), say_words(&text, overload->arguments[position]), say_words(&text, ": "),
            say_words(&text, overload->rules[position]);
        return refused(&text);
    }
    if (!is_of_strings(overload))
        NEED(!is_surveying() && overload->kernels[position], KERNEL, overload - op->overloads, position);
    *kernel = is_of_strings(overload) ? 0 : overload->kernels[position], *is_found = 1;
    return 0;
}

/* The attributes of a node, and what it has for inputs. */
static status read_node(const struct op *op, const struct text *title, const void *info, struct block *block,
                        struct call *call, int *constants, int *complete) {
    size_t count = (size_t)op->input_count;
    status wrong = begin_block(op, block);
    for (int64_t k = 0; k < op->attribute_count && !wrong; k++)
        wrong = read_attribute(title, &op->attributes[k], k, info, block);
    if (!wrong) wrong = KernelInfo_GetInputCount(info, &count);
    if (!wrong && count > MAX_INPUTS) wrong = too_many_inputs(op, title, count);
    for (size_t k = 0; k < count && !wrong; k++) {
        int is_constant = 0;
        wrong = put_known_input(op, title, k, info, call, &is_constant);
        *constants = *constants && is_constant;
        *complete = *complete && !wrong && (is_constant || is_known(&call->tensors[k]));
    }
    for (size_t k = count; k < (size_t)op->input_count; k++) put_absent(k, call);
    call->input_count = (int64_t)count;
    return wrong;
}

status create_kernel(const struct custom_op *custom, const void *unused, const void *info, void **kernel) {
    struct op *op = custom->op;
    union {
        struct parameters parameters;
        char room[MAX_RECORD];
    } found;
    struct call call;
    struct block block;
    struct text title = {"", 0};
    struct state state = {.op = op, .overload = custom->overload};
    size_t size = 0;
    int constants = 1, complete = 1;
    status wrong;
    (void)unused;
    *kernel = 0;
    if ((wrong = KernelInfo_GetNodeName(info, 0, &size))) return wrong;
    char *name = calloc(size + 1, 1);
    if (!name) return failed("onnx_ops: no room for a node's name");
    say_title(&title, op);
    wrong = KernelInfo_GetNodeName(info, name, &size);
    if (!wrong && (size = without_end(name, size)))
        say_words(&title, " (node "), say_quoted(&title, name, size), say_words(&title, ")");
    free(name);
    if (wrong) return wrong;
    wrong = read_node(op, &title, info, &block, &call, &constants, &complete);
    if (!wrong && op->is_function) {
        ((struct parameters *)block.at)->kernel = (int64_t)block.used; /* for Python, which reads all of it */
        call.parameters = (struct parameters *)block.at;
        if (complete) wrong = check_function(op, state.overload, &title, &call);
        if (!wrong) wrong = new_state(&state, call.parameters, block.used, &call, 0, kernel);
    } else if (!wrong) {
        int is_found = 0;
        wrong = find_kernel(op, state.overload, &title, vectors(&block), &found.parameters, &call, complete,
                            &state.kernel, &is_found);
        if (is_found)
            wrong = new_state(&state, &found.parameters, (size_t)op->parameters_size, &call, constants, kernel);
    }
    free(block.at);
    return wrong;
}

/* Tell ONNX Runtime what is known of an output; a dimension that has no name gets one. */
static status tell_output(const struct op *op, size_t k, int type, const struct tensor *tensor,
                          const char *const *names, int64_t name_count, void *context) {
    static atomic_uint unknown;
    const char *symbols[MAX_RANK];
    char made_up[MAX_RANK][24];
    int64_t sizes[MAX_RANK];
    void *info;
    status wrong;
    (void)op;
    for (int64_t a = 0; a < tensor->rank; a++) {
        sizes[a] = tensor->shape[a] < 0 ? -1 : tensor->shape[a];
        int64_t name = UNKNOWN - 1 - tensor->shape[a];
        symbols[a] = tensor->shape[a] >= 0 ? "" : 0 <= name && name < name_count ? names[name] : made_up[a];
        /* without a name an unknown dimension would become a literal -1 */
        snprintf(made_up[a], sizeof made_up[a], "onnx_ops_%u", atomic_fetch_add(&unknown, 1));
    }
    if ((wrong = CreateTensorTypeAndShapeInfo(&info))) return wrong;
    wrong = SetTensorElementType(info, type);
    if (!wrong) wrong = SetDimensions(info, sizes, (size_t)tensor->rank);
    if (!wrong) wrong = SetSymbolicDimensions(info, symbols, (size_t)tensor->rank);
    if (!wrong) wrong = ShapeInferContext_SetOutputTypeShape(context, k, info);
    ReleaseTensorTypeAndShapeInfo(info);
    return wrong;
}

/* The shapes of a function's outputs by its rule, which is told all or not asked; 0: they aren't known. */
static int infer_function(struct op *op, struct call *call, const void *context) {
    struct block block;
    status wrong = begin_block(op, &block);
    int known = !wrong && op->has_rule;
    for (int64_t k = 0; k < call->input_count; k++) known = known && is_known(&call->tensors[k]);
    for (int64_t k = 0; k < op->attribute_count && known; k++)
        known = infer_attribute(&op->attributes[k], k, context, &block);
    if (block.at) ((struct parameters *)block.at)->kernel = (int64_t)block.used;
    call->parameters = (struct parameters *)block.at;
    if (known) wrong = plan_function(op, 0, call);
    if (wrong) ReleaseStatus(wrong);
    free(block.at);
    return known && !wrong && !op->has_bound;
}

/* InferOutputShapeFn: what is known of the outputs before any input is there. */
status infer(const struct custom_op *custom, void *context) {
    static const struct parameters nothing[MAX_RECORD / sizeof(struct parameters) + 1];
    struct op *op = custom->op;
    const char *names[MAX_INPUTS * MAX_RANK];
    int64_t name_count = 0;
    size_t count = (size_t)op->input_count;
    int types[MAX_INPUTS] = {0}; /* of inputs that the node lacks at its end, too */
    struct call call;
    void *info;
    status wrong = ShapeInferContext_GetInputCount(context, &count);
    if (wrong || count > MAX_INPUTS) return wrong;
    for (size_t k = 0; k < count; k++) {
        if ((wrong = ShapeInferContext_GetInputTypeShape(context, k, &info))) return wrong;
        if ((wrong = GetTensorElementType(info, &types[k]))) return wrong;
        if (!types[k]) put_absent(k, &call);
        else if ((wrong = put_known(op, k, info, &call, op->is_function ? 0 : names, &name_count))) return wrong;
    }
    for (size_t k = count; k < (size_t)op->input_count; k++) put_absent(k, &call);
    call.input_count = (int64_t)count;
    if (op->is_function) {
        if (!infer_function(op, &call, context)) return 0;
    } else {
        NEED(op->infer, INFER, 0, 0);
        begin_plan(op, &call);
        if (op->infer(nothing, &call) || call.geometry.rank < 0 || call.geometry.rank > MAX_RANK) return 0;
        put_output(&call.geometry, &call.tensors[MAX_INPUTS]);
    }
    for (int64_t k = 0; k < op->output_count && !wrong; k++) {
        int type = op->outputs[k] < 0 ? (int)op->overloads->types[MAX_INPUTS + k] : types[op->outputs[k]];
        wrong = tell_output(op, (size_t)k, type, &call.tensors[MAX_INPUTS + k], names, name_count, context);
    }
    return wrong;
}
