/* The attributes of a node: their values, as compiled code and Python read them. */
#include "attributes.h"
#include <stdlib.h>
#include <string.h>

struct values { /* a struct block that is being filled */
    char *start;
    size_t used, capacity; /* in bytes */
};

static struct block *block_of(const struct values *values) { return (struct block *)values->start; }

/* Append bytes, which are 0, to the values, which may move; returns their address, or 0 if there is no memory. */
static void *append(struct values *values, size_t size) {
    size = (size + 7) / 8 * 8;
    if (!values->start || size > values->capacity - values->used) {
        size_t capacity = 2 * (values->used + size) + 512;
        char *start = malloc(capacity);
        if (!start) return 0;
        if (values->start) memcpy(start, values->start, values->used);
        free(values->start);
        values->start = start, values->capacity = capacity;
    }
    memset(values->start + values->used, 0, size);
    return values->start + (values->used += size) - size;
}

static status no_memory(void) { return failed("onnx_ops: no room for an attribute"); }

/* Store the vector of attribute k, whose values are at `address`. */
static void put_vector(struct values *values, int64_t k, int64_t count, void *address) {
    block_of(values)->vectors[k] = (struct vector){count, (char *)address - values->start};
}

static status put_default(const struct attribute *a, int64_t k, struct values *values) {
    size_t size = (size_t)a->initial_count * sizeof *a->initials;
    void *address = append(values, size);
    if (!address) return no_memory();
    if (size) memcpy(address, a->initials, size);
    return put_vector(values, k, a->value_count, address), NULL;
}

/* Append a tensor: its type, its rank, its shape, its elements. */
static status put_constant(void *value, int64_t k, struct values *values, int *fits) {
    int type;
    size_t rank;
    int64_t copy[MAX_RANK];
    const int64_t *shape;
    void *data;
    status error = read_tensor(value, &type, &rank, copy, &shape);
    int has_type = (unsigned)type < TYPES && item_size[type];
    if (error || !(*fits = has_type && rank <= MAX_RANK)) return error;
    if ((error = GetTensorMutableData(value, &data))) return error;
    int64_t count = elements(shape, (int64_t)rank);
    size_t bytes = (size_t)count * item_size[type], size = (2 + rank) * sizeof *copy + bytes;
    int64_t *address = append(values, size);
    if (!address) return no_memory();
    address[0] = type, address[1] = (int64_t)rank;
    memcpy(address + 2, shape, rank * sizeof *shape);
    if (bytes) memcpy(address + 2 + rank, data, bytes);
    return put_vector(values, k, count, address), NULL;
}

/* Notes on values of another kind, with onnx's names of the kinds. */
static const char *const NOTES[] = {"(not of kind INT)",    "(not of kind INTS)",   "(not of kind STRING)",
                                    "(not of kind FLOAT)",  "(not of kind FLOATS)", "(not of kind STRING)",
                                    "(not of kind TENSOR)"};

/* Convert the last values, of attribute k: `count` integers, floats or, for a text, bytes. Returns whether the attribute
 * may have these values. */
static int convert_values(const struct attribute *a, int64_t k, void *raw, size_t count, struct values *values) {
    int64_t *numbers = raw;
    int fits = (a->kind != INTS && a->kind != FLOATS) ||
               (a->shortest <= (int64_t)count && (int64_t)count <= a->longest);
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
    values->used = (size_t)((char *)raw - values->start) + size;
    put_vector(values, k, (int64_t)count, raw);
    return fits;
}

/* A read_function appends the values of attribute k, unconverted but for those of a tensor. */
enum { LACKS, OTHER_KIND, UNCONVERTED, COMPLETE };

/* Fill in a list that is written as one integer. */
static void repeat(int64_t number, int64_t repeats, int64_t *numbers) {
    for (int64_t n = 0; n < repeats; n++) numbers[n] = number;
}

/* ONNX Runtime's error, or 0 if it has this code, which means that an attribute is lacking or of another kind. */
static status unless(int code, status error) {
    if (!error || GetErrorCode(error) != code) return error;
    return ReleaseStatus(error), NULL;
}

/* Without memory for a status, ONNX Runtime reports success where it has written nothing. */
#define UNWRITTEN SIZE_MAX
static status read_number(const void *info, const char *name, int64_t kind, int64_t *value) {
    for (int64_t before = 0; before >= -1; before--) { /* the second time only if the value is 0, or isn't written */
        *value = before;
        status error = kind == FLOAT ? KernelInfoGetAttribute_float(info, name, (float *)value)
                                     : KernelInfoGetAttribute_int64(info, name, value);
        if (error || memcmp(value, &before, sizeof before)) return error;
    }
    return no_memory();
}

/* Read from the OrtKernelInfo of a node. FAIL is the code of an attribute that is lacking or of another kind. ONNX
 * Runtime doesn't check the attributes of custom ops, and reads a list of another kind as an empty one. For integers
 * where another kind is declared, the outcome is OTHER_KIND, and the vector has the integers. */
status read_from_node(const struct attribute *a, const char *name, const void *info, int64_t k, struct values *values,
                      int *outcome) {
    size_t size = UNWRITTEN;
    void *raw, *allocator, *tensor = 0;
    int64_t number = 0, kind = a->kind;
    int fits = 0;
    status error = KernelInfoGetAttributeArray_int64(info, name, 0, &size);
    *outcome = error ? LACKS : OTHER_KIND;
    if (error) return unless(FAIL, error);
    if (size == UNWRITTEN) return no_memory();
    if (size) kind = INTS;
    if (kind == TENSOR) {
        if ((error = GetAllocatorWithDefaultOptions(&allocator))) return error;
        if ((error = KernelInfoGetAttribute_tensor(info, name, allocator, &tensor))) return unless(FAIL, error);
        if (!tensor) return no_memory();
        error = put_constant(tensor, k, values, &fits);
        ReleaseValue(tensor);
        if (fits) *outcome = COMPLETE;
        return error;
    }
    int is_text_kind = kind == STRING || kind == TEXT, is_single = kind == INTS && !size && a->repeats;
    if (kind == INT || kind == FLOAT) size = 1;
    if (kind == FLOATS) size = UNWRITTEN, error = KernelInfoGetAttributeArray_float(info, name, 0, &size);
    if (is_text_kind) size = UNWRITTEN, error = KernelInfoGetAttribute_string(info, name, 0, &size);
    if (is_single) size = (size_t)a->repeats, error = read_number(info, name, INT, &number);
    if (error) return unless(FAIL, error);
    if (size == UNWRITTEN) return no_memory();
    if (!(raw = append(values, (size + 1) * sizeof(int64_t)))) return no_memory();
    if (kind == INT || kind == FLOAT) error = read_number(info, name, kind, raw);
    if (kind == FLOAT && error && !(error = unless(FAIL, error))) error = read_number(info, name, kind = INT, raw);
    if (is_single) repeat(number, a->repeats, raw);
    else if (kind == INTS) error = KernelInfoGetAttributeArray_int64(info, name, raw, &size);
    if (kind == FLOATS) error = KernelInfoGetAttributeArray_float(info, name, raw, &size);
    if (is_text_kind) error = KernelInfoGetAttribute_string(info, name, raw, &size);
    if (error) return unless(FAIL, error);
    if (is_text_kind && !is_text(raw, size = without_end(raw, size))) return 0;
    if (kind == a->kind && (is_text_kind || size)) *outcome = UNCONVERTED;
    return put_vector(values, k, (int64_t)size, raw), NULL;
}

/* Read from the OrtShapeInferContext of a node, which has no tensors. INVALID_ARGUMENT is the code of an attribute that
 * is lacking. Nobody reads other errors: then no shapes are known. */
status read_from_inference(const struct attribute *a, const char *name, const void *context, int64_t k,
                           struct values *values, int *outcome) {
    static const int TYPES_OF_KINDS[] = {1, 2, 5, 3, 4, 5}; /* values of OrtOpAttrType: 3, 4 floats, 5 a text */
    enum { CAPACITY = 4096 }; /* bytes */
    const void *attribute = 0;
    size_t size = 0;
    void *raw;
    status error = ShapeInferContext_GetAttribute(context, name, &attribute);
    *outcome = error || !attribute ? LACKS : OTHER_KIND;
    error = unless(INVALID_ARGUMENT, error);
    if (error || *outcome == LACKS || a->kind == TENSOR) return error;
    if (!(raw = append(values, 2 * CAPACITY + 8))) return no_memory();
    int type = TYPES_OF_KINDS[a->kind];
    error = ReadOpAttr(attribute, type, raw, CAPACITY, &size);
    if (a->repeats && (error || !size)) {
        if (error) ReleaseStatus(error);
        if (!(error = ReadOpAttr(attribute, TYPES_OF_KINDS[INT], raw, CAPACITY, &size)))
            repeat(*(int64_t *)raw, a->repeats, raw), size = (size_t)a->repeats * sizeof(int64_t);
    }
    if (error) return ReleaseStatus(error), NULL;
    size = type == 5 ? without_end(raw, size) : type > 2 ? size / sizeof(float) : size / sizeof(int64_t);
    *outcome = UNCONVERTED;
    return put_vector(values, k, (int64_t)size, raw), NULL;
}

static status read_attribute(const struct op *op, const struct name *node, int64_t k, read_function *read,
                             const void *source, struct values *values) {
    const struct attribute *a = &op->attributes[k];
    int outcome = LACKS;
    status error = 0;
    for (int64_t name = 0; name < a->name_count && outcome == LACKS && !error; name++)
        error = read(a, a->names[name], source, k, values, &outcome);
    if (error || outcome == COMPLETE) return error;
    struct refusal refusal = {.argument = a->names[0], .rule = "must be given"};
    if (outcome == LACKS) return a->required ? refuse(op, node, &refusal, "None") : put_default(a, k, values);
    int64_t count = block_of(values)->vectors[k].count;
    void *raw = values->start + block_of(values)->vectors[k].offset;
    int is_other_kind = outcome == OTHER_KIND; /* then it has integers, or no value that can be read */
    if (!is_other_kind && convert_values(a, k, raw, (size_t)count, values)) return 0;
    int is_single = is_other_kind ? count == 1 && a->kind == FLOAT : a->kind == INT;
    if (!is_other_kind || count) refusal.values = raw, refusal.count = is_single ? -1 : count;
    if (!is_other_kind) refusal.kinds = a->kind == STRING ? OF_TEXT : a->kind == FLOATS ? OF_DOUBLES : 0;
    refusal.rule = is_other_kind ? a->kind_rule : a->rule;
    return refuse(op, node, &refusal, is_other_kind ? NOTES[a->kind] : 0);
}

/* Read all attributes of a node from a source. The caller frees the block, also after an error. */
status read_attributes(const struct op *op, const struct name *node, read_function *read, const void *source,
                       struct block **block) {
    struct values values = {0, 0, 0};
    if (!append(&values, sizeof **block + (size_t)op->attribute_count * sizeof *(*block)->vectors))
        return failed("onnx_ops: no room for attributes");
    status error = 0;
    for (int64_t k = 0; k < op->attribute_count && !error; k++)
        error = read_attribute(op, node, k, read, source, &values);
    *block = block_of(&values), (*block)->size = (int64_t)values.used;
    return error;
}
