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

/* The attribute's values in the node. ONNX Runtime checks no attributes of custom ops, and reads a list of another kind
 * as an empty one. */
static status read_attribute(const struct text *title, const struct attribute *a, const void *info,
                             struct vector *vector) {
    struct text value = {"", 0};
    size_t size = 0, length = 0;
    int64_t number, *numbers = &number;
    char *content = 0;
    status wrong = KernelInfoGetAttributeArray_int64(info, a->name, 0, &size);
    if (wrong) {
        ReleaseStatus(wrong);
        *vector = a->initial;
        return a->required ? say_words(&value, "None"), wrong_attribute(title, a, &value, "must be given") : 0;
    }
    if (a->kind == INT) wrong = KernelInfoGetAttribute_int64(info, a->name, &number);
    if (a->kind == INTS) {
        if (!(content = malloc(size * sizeof number + 1))) return failed("onnx_ops: no room for an attribute");
        numbers = (int64_t *)content;
        if (size) wrong = KernelInfoGetAttributeArray_int64(info, a->name, numbers, &size);
    }
    if (a->kind == STRING && !(wrong = KernelInfoGetAttribute_string(info, a->name, 0, &size))) {
        if (!(content = calloc(size + 1, 1))) return failed("onnx_ops: no room for an attribute");
        wrong = KernelInfoGetAttribute_string(info, a->name, content, &size);
        length = without_end(content, size);
        size = 1;
    }
    if (wrong || (a->kind == INTS && !size) || (a->kind == STRING && !is_text(content, length))) {
        if (wrong) ReleaseStatus(wrong);
        free(content);
        say_words(&value, "(of another kind)");
        return wrong_attribute(title, a, &value, a->kind_rule);
    }
    if (a->kind == INT) size = 1, say_number(&value, number);
    if (a->kind == INTS) say_vector(&value, numbers, (int64_t)size);
    if (a->kind == STRING) {
        number = -1;
        for (int64_t k = 0; k < a->choice_count; k++)
            if (strlen(a->choices[k]) == length && !memcmp(a->choices[k], content, length)) number = k;
        if (number < 0) say_quoted(&value, content, length);
        numbers = &number;
    }
    int fits = a->kind != INTS || (a->shortest <= (int64_t)size && (int64_t)size <= a->longest);
    for (size_t k = 0; k < size; k++) fits = fits && a->least <= numbers[k] && numbers[k] <= a->most;
    vector->count = (int64_t)size;
    if (fits) memcpy(vector->values, numbers, size * sizeof number);
    else wrong = wrong_attribute(title, a, &value, a->rule);
    free(content);
    return wrong;
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
    if (op->inputs[k].wants_values) { /* of which only their number is known */
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
    status wrong = KernelInfoGetConstantInput_tensor(info, k, is_constant, &value);
    if (wrong || *is_constant) return wrong ? wrong : put_tensor(op, title, k, value, call);
    if ((wrong = KernelInfo_GetInputTypeInfo(info, k, &type_info))) return wrong;
    wrong = CastTypeInfoToTensorInfo(type_info, (void **)&tensor_info);
    if (!wrong) wrong = put_known(op, k, tensor_info, call, 0, 0);
    ReleaseTypeInfo(type_info);
    return wrong;
}

static void begin(const struct op *op, struct call *call) {
    memset(&call->geometry, 0, (size_t)op->geometry_size);
    call->geometry.rank = -1;
}

/* A kernel's state, with the result if the inputs are all constant and it is not too large to be kept. */
static status new_state(const struct state *made, const struct parameters *parameters, struct call *call, int constant,
                        void **kernel) {
    const struct op *op = made->op;
    const struct geometry *g = &call->geometry;
    size_t size = offsetof(struct state, parameters) + (size_t)op->parameters_size, bytes = 0;
    struct tensor *out = &call->tensors[MAX_INPUTS];
    size_t item = item_size[made->overload->types[MAX_INPUTS]];
    if (constant && made->kernel) {
        out->size = elements(g->shape, g->rank);
        if (0 < out->size && (size_t)out->size <= LARGEST_RESULT / item) bytes = (size_t)out->size * item;
    }
    struct state *state = malloc(size + bytes);
    if (!state && bytes) state = malloc(size), bytes = 0; /* there may be room when the node runs */
    if (!state) return failed("onnx_ops: no room for a kernel's state");
    memcpy(state, made, offsetof(struct state, parameters));
    memcpy(&state->parameters, parameters, (size_t)op->parameters_size);
    if (bytes) {
        out->data = (char *)state + size;
        status wrong = run_tiles(op, made->kernel, call, 0);
        if (wrong) ReleaseStatus(wrong);
        else {
            state->result = out->data, state->result_size = bytes, state->rank = g->rank;
            memcpy(state->shape, g->shape, sizeof state->shape);
            atomic_fetch_add(&made->op->results_made, 1);
        }
    }
    atomic_fetch_add(&made->op->kernels_made, 1);
    *kernel = state;
    return 0;
}

#define NEED(function, ...)                                                                                            \
    do {                                                                                                               \
        int available = (function) != 0;                                                                               \
        status lack = available ? 0 : compile(op, __VA_ARGS__, &available);                                            \
        if (lack || !available) return lack;                                                                           \
    } while (0)

status create_kernel(const struct custom_op *custom, const void *unused, const void *info, void **kernel) {
    struct op *op = custom->op;
    const struct overload *overload = custom->overload;
    struct vector attributes[MAX_ATTRIBUTES];
    union {
        struct parameters parameters;
        char room[MAX_RECORD];
    } found;
    struct call call;
    struct text title = {"", 0};
    size_t size = 0;
    status wrong;
    int64_t returned;
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

    for (int64_t k = 0; k < op->attribute_count; k++)
        if ((wrong = read_attribute(&title, &op->attributes[k], info, &attributes[k]))) return wrong;
    NEED(op->resolve, RESOLVE, 0, 0);
    memset(&found, 0, (size_t)op->parameters_size);
    if ((returned = op->resolve(attributes, &found.parameters)))
        return explained(op, &title, &found.parameters.refusal, returned);
    int64_t position = found.parameters.kernel;
    if (position < 0 || position >= MAX_KERNELS) return explained(op, &title, 0, -1);

    int constants = 0, complete = 1;
    for (size_t k = 0; k < (size_t)op->input_count; k++) {
        int is_constant = 0;
        if ((wrong = put_known_input(op, &title, k, info, &call, &is_constant))) return wrong;
        constants += is_constant;
        if (!is_constant) complete = complete && call.tensors[k].rank > 0;
        for (int64_t a = 0; a < call.tensors[k].rank && !is_constant; a++)
            complete = complete && call.tensors[k].shape[a] >= 0;
    }
    NEED(op->infer, INFER, 0, 0);
    begin(op, &call);
    if ((returned = op->infer(&found.parameters, &call)))
        return explained(op, &title, &call.geometry.refusal, returned);
    NEED(op->plan, PLAN, 0, 0);
    begin(op, &call);
    if (complete && (returned = op->plan(&found.parameters, &call)))
        return explained(op, &title, &call.geometry.refusal, returned);
    if (call.geometry.rank > MAX_RANK) return explained(op, &title, 0, -1);

    if (overload->rules[position]) {
        struct text text = title;
        say_words(&text, ": "), say_words(&text, overload->arguments[position]), say_words(&text, ": "),
            say_words(&text, overload->rules[position]);
        return refused(&text);
    }
    if (!is_of_strings(overload))
        NEED(!is_surveying() && overload->kernels[position], KERNEL, overload - op->overloads, position);
    struct state state = {.op = op, .overload = overload, .kernel = overload->kernels[position]};
    return new_state(&state, &found.parameters, &call, constants == op->input_count, kernel);
}

/* InferOutputShapeFn: what is known of the output before any input is there. */
status infer(const struct custom_op *custom, void *context) {
    static atomic_uint unknown;
    static const struct parameters nothing[MAX_RECORD / sizeof(struct parameters) + 1];
    const struct op *op = custom->op;
    const char *names[MAX_INPUTS * MAX_RANK], *symbols[MAX_RANK];
    char made_up[MAX_RANK][24];
    int64_t name_count = 0, sizes[MAX_RANK];
    struct call call;
    void *info;
    int type = 0;
    status wrong;
    for (size_t k = 0; k < (size_t)op->input_count; k++) {
        if ((wrong = ShapeInferContext_GetInputTypeShape(context, k, &info))) return wrong;
        if ((wrong = put_known(op, k, info, &call, names, &name_count))) return wrong;
        if (k == (size_t)op->output_like && (wrong = GetTensorElementType(info, &type))) return wrong;
    }
    NEED(op->infer, INFER, 0, 0);
    begin(op, &call);
    const struct geometry *g = &call.geometry;
    if (op->infer(nothing, &call) || g->rank < 0 || g->rank > MAX_RANK) return 0;
    for (int64_t a = 0; a < g->rank; a++) {
        sizes[a] = g->shape[a] < 0 ? -1 : g->shape[a];
        int64_t name = UNKNOWN - 1 - g->shape[a];
        symbols[a] = g->shape[a] >= 0 ? "" : 0 <= name && name < name_count ? names[name] : made_up[a];
        /* without a name an unknown dimension would become a literal -1 */
        snprintf(made_up[a], sizeof made_up[a], "onnx_ops_%u", atomic_fetch_add(&unknown, 1));
    }
    if ((wrong = CreateTensorTypeAndShapeInfo(&info))) return wrong;
    wrong = SetTensorElementType(info, type);
    if (!wrong) wrong = SetDimensions(info, sizes, (size_t)g->rank);
    if (!wrong) wrong = SetSymbolicDimensions(info, symbols, (size_t)g->rank);
    if (!wrong) wrong = ShapeInferContext_SetOutputTypeShape(context, 0, info);
    ReleaseTensorTypeAndShapeInfo(info);
    return wrong;
}
