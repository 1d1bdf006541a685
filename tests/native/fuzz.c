/* libFuzzer on nodes. An input is a description of a node (nodes.c), then a byte each for a mode and a fault, and two
 * bytes for the number of what fails; 0 is none. Most mutations are of the description's fields. */
#include "nodes.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *count, char ***words);
int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);
size_t LLVMFuzzerMutate(unsigned char *bytes, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(unsigned char *bytes, size_t size, size_t most, unsigned seed);

int LLVMFuzzerInitialize(int *count, char ***words) {
    (void)count, (void)words;
    largest_tensor = 1 << 14, largest_block = 1 << 22; /* so that a run takes milliseconds */
    connect_python();
    onnx_ops_choose();
    registered = options_for_all();
    status error = register_all(registered);
    if (error) fprintf(stderr, "%s\n", message_of(error)), exit(2);
    return 0;
}

/* Whether a node takes many samples for each number of its output: their number is an attribute, or it follows from the
 * sizes of regions. Such a node may as well take minutes. */
static int is_slow(const struct custom_op *custom, const struct node *node) {
    enum { MOST_SAMPLES = 64 };
    double scale = 1, largest = 0;
    int has_samples = 0;
    for (int64_t k = 0; k < custom->op->attribute_count; k++)
        has_samples |= strstr(custom->op->attributes[k].names[0], "sampl") != 0;
    if (!has_samples) return 0;
    for (size_t k = 0; k < node->attribute_count; k++) {
        const struct given *a = &node->attributes[k];
        int64_t number = 0;
        float real = 1;
        if (a->kind == INT) memcpy(&number, a->content, sizeof number);
        if (a->kind == FLOAT) memcpy(&real, a->content, sizeof real);
        if (a->kind == INT && strstr(a->name, "sampl") && number > MOST_SAMPLES) return 1;
        if (strstr(a->name, "scale") && !(fabs(real) <= scale)) scale = fabs(real);
    }
    for (int k = 0; k < 2; k++) {
        const struct value *rois = k ? &node->others[1] : &node->inputs[1];
        const float *numbers = rois->data;
        for (size_t n = 0; rois->info.type == 1 && n < rois->bytes / sizeof *numbers; n++)
            if (!(fabs(numbers[n]) <= largest)) largest = isnan(numbers[n]) ? INFINITY : fabs(numbers[n]);
    }
    return !(2 * largest * scale <= MOST_SAMPLES);
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size) {
    static struct node node;
    static struct life life;
    struct reader reader = {(const char *)bytes, (const char *)bytes + size};
    const struct custom_op *custom = take_node(&reader, &node);
    enum mode mode = (enum mode)(take_byte(&reader) % MODES);
    enum fault fault = (enum fault)(take_byte(&reader) % FAULTS);
    uint16_t number;
    take(&reader, sizeof number, &number);
    if (custom && !is_slow(custom, &node)) {
        struct books before = books;
        set_mode(&node, mode), set_faults(CALL, 0);
        live(custom, &node, mode, &life);
        long count = count_of(fault);
        if (number && count) live_with_fault("the input", custom, &node, mode, fault, 1 + number % count, &life);
        release_life(&life);
        if (memcmp(&books, &before, sizeof books)) FINDING("%+ld blocks are left", books.blocks - before.blocks);
    }
    release_node(&node);
    if (has_findings) fflush(stdout), abort();
    return 0;
}

/* Mutations. */
enum kind_of_field { NAMES, ATTRIBUTE_COUNT, ATTRIBUTE, INPUT_COUNT, INPUT, TYPE, TENSOR_SHAPE, SIZE, CONTENT, TAIL };
struct field { /* bytes of a description; of a CONTENT also the element's type */
    enum kind_of_field kind;
    size_t at, size;
    int type;
};
enum { MOST_FIELDS = 512, MOST_MUTATED = 1 << 16 };
static struct field fields[MOST_FIELDS];
static size_t field_count;
static const struct op *op; /* the operator that the description names, or 0 */
static unsigned random_state;

static unsigned below(size_t most) {
    random_state = random_state * 1664525 + 1013904223;
    return most ? (random_state >> 8) % (unsigned)most : 0;
}
static void add_field(enum kind_of_field kind, const char *from, const struct reader *reader, const char *begin,
                      int type) {
    if (field_count < MOST_FIELDS && reader->at > from)
        fields[field_count++] = (struct field){kind, (size_t)(from - begin), (size_t)(reader->at - from), type};
}
/* Find the fields of a tensor of a type. */
static void scan_sized(struct reader *reader, const char *begin, int type) {
    const char *from = reader->at;
    size_t rank = take_byte(reader) % (MOST_DIMENSIONS + 1);
    uint32_t bytes;
    for (size_t a = 0; a < rank; a++) {
        const char *size = reader->at;
        take(reader, sizeof(int64_t), 0), add_field(SIZE, size, reader, begin, 0);
    }
    take(reader, sizeof bytes, &bytes), add_field(TENSOR_SHAPE, from, reader, begin, type);
    from = reader->at;
    take(reader, bytes, 0), add_field(CONTENT, from, reader, begin, type);
}
static int scan_tensor(struct reader *reader, const char *begin) {
    const char *from = reader->at;
    int type = (int)take_byte(reader);
    add_field(TYPE, from, reader, begin, type);
    return scan_sized(reader, begin, type), type;
}
static void scan_text(struct reader *reader) { take(reader, take_byte(reader), 0); }
static void scan_attribute(struct reader *reader, const char *begin) {
    static const int types[] = {[INT] = 7, [INTS] = 7, [STRING] = 2, [FLOAT] = 1, [FLOATS] = 1, [TEXT] = 2};
    const char *from = reader->at;
    uint16_t count;
    scan_text(reader);
    int kind = (int)take_byte(reader) % (TENSOR + 1);
    if (kind == TENSOR) scan_tensor(reader, begin);
    else {
        take(reader, sizeof count, &count);
        const char *content = reader->at;
        take(reader, (kind == INT || kind == FLOAT ? 1 : (size_t)count) * item_size[types[kind]], 0);
        add_field(CONTENT, content, reader, begin, types[kind]);
    }
    add_field(ATTRIBUTE, from, reader, begin, kind);
}
static void scan(const unsigned char *bytes, size_t size) {
    const char *begin = (const char *)bytes;
    struct reader reader = {begin, begin + size};
    int types[MOST_INPUTS];
    field_count = 0, op = 0;
    scan_text(&reader), scan_text(&reader), add_field(NAMES, begin, &reader, begin, 0);
    for (int64_t k = 0; k < onnx_ops_table.operator_count; k++) {
        const struct op *each = onnx_ops_table.operators[k];
        size_t first = strlen(each->domain), second = strlen(each->name);
        if (reader.at - begin == (ptrdiff_t)(first + second + 2) && (size_t)bytes[0] == first &&
            !memcmp(begin + 1, each->domain, first) && !memcmp(begin + first + 2, each->name, second))
            op = each;
    }
    scan_text(&reader);
    const char *from = reader.at;
    size_t count = take_byte(&reader) % (MOST_ATTRIBUTES + 1);
    add_field(ATTRIBUTE_COUNT, from, &reader, begin, (int)count);
    while (count--) scan_attribute(&reader, begin);
    from = reader.at, count = take_byte(&reader) % (MOST_INPUTS + 1);
    add_field(INPUT_COUNT, from, &reader, begin, (int)count);
    for (size_t k = 0; k < count; k++) {
        from = reader.at;
        types[k] = take_byte(&reader) & IS_ABSENT ? 0 : scan_tensor(&reader, begin);
        add_field(INPUT, from, &reader, begin, types[k]);
    }
    int has_others = take_byte(&reader) & 1;
    for (size_t k = 0; k < count && has_others; k++)
        if (types[k]) scan_sized(&reader, begin, types[k]);
    from = reader.at, reader.at = reader.end, add_field(TAIL, from, &reader, begin, 0);
}

/* One of the fields of a kind, or 0. */
static const struct field *draw(enum kind_of_field kind) {
    size_t count = 0, chosen;
    for (size_t k = 0; k < field_count; k++) count += fields[k].kind == kind;
    chosen = below(count);
    for (size_t k = 0; k < field_count; k++)
        if (fields[k].kind == kind && !chosen--) return &fields[k];
    return 0;
}
static struct {
    unsigned char *bytes;
    size_t size, most;
} mutated;
/* Put other bytes in place of a part. */
static void splice(size_t at, size_t size, const void *content, size_t new_size) {
    if (mutated.size - size + new_size > mutated.most) return;
    memmove(mutated.bytes + at + new_size, mutated.bytes + at + size, mutated.size - at - size);
    if (new_size) memcpy(mutated.bytes + at, content, new_size);
    mutated.size += new_size - size;
}
static int64_t some_integer(void) {
    static const int64_t some[] = {0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 64, 1000, -1, -2, 1LL << 20, INT32_MAX, 1LL << 32,
                                   1LL << 40, 1LL << 58, 1LL << 62, INT64_MAX, INT64_MIN};
    uint64_t number = (uint64_t)some[below(below(3) ? 8 : COUNT(some))]; /* it may wrap around */
    return (int64_t)(below(8) ? number : number + below(3) - 1);
}
static float some_float(void) {
    static const float some[] = {0, 1, -1, 0.5f, 2, -0.0f, 1e-40f, 1e9f, -3e38f, INFINITY, -INFINITY, NAN, 8388608};
    return below(2) ? some[below(COUNT(some))] : ((float)below(4001) - 2000) / (float)(1 << below(11));
}
static void write_number(void *to, int type) {
    int64_t integer[2] = {some_integer(), some_integer()}; /* complex numbers have 16 bytes */
    float real = some_float();
    double wide = real;
    if (type == 1) memcpy(to, &real, sizeof real);
    else if (type == 11) memcpy(to, &wide, sizeof wide);
    else memcpy(to, integer, item_size[type]);
}
static void change_element(void) {
    const struct field *field = draw(CONTENT);
    if (!field || field->type <= 0 || field->type >= TYPES || !item_size[field->type]) return;
    size_t item = item_size[field->type], count = field->size / item;
    if (count) write_number(mutated.bytes + field->at + item * below(count), field->type);
}
static int64_t size_at(const struct field *field) {
    int64_t size = 0;
    return memcpy(&size, mutated.bytes + field->at, field->size < sizeof size ? field->size : sizeof size), size;
}
/* Change a size, and most times all equal ones with it. */
static void change_size(void) {
    const struct field *field = draw(SIZE), *other = draw(SIZE);
    if (!field) return;
    int64_t old = size_at(field), size = below(3) ? some_integer() : size_at(other);
    int with_others = below(4) != 0;
    for (size_t k = 0; k < field_count; k++) {
        int is_changed = &fields[k] == field || (with_others && fields[k].kind == SIZE && size_at(&fields[k]) == old);
        if (is_changed && fields[k].size == sizeof size) memcpy(mutated.bytes + fields[k].at, &size, sizeof size);
    }
}
static void change_rank(void) {
    const struct field *field = draw(TENSOR_SHAPE);
    const int64_t one = 1;
    if (!field || field->size < 1 + sizeof one) return;
    size_t rank = mutated.bytes[field->at];
    if (below(2)) mutated.bytes[field->at] = (unsigned char)(rank + 1), splice(field->at + 1, 0, &one, sizeof one);
    else if (rank && field->size >= 1 + sizeof one)
        mutated.bytes[field->at] = (unsigned char)(rank - 1), splice(field->at + 1, sizeof one, 0, 0);
}
/* Give all inputs the types of one of the operator's overloads. */
static void change_types(void) {
    size_t k = 0;
    if (!op || !op->overload_count) return;
    const int64_t *types = op->overloads[below((size_t)op->overload_count)].types;
    for (size_t f = 0; f < field_count; f++)
        if (fields[f].kind == TYPE && k < MAX_INPUTS && types[k])
            mutated.bytes[fields[f].at] = (unsigned char)types[k++];
}
static size_t put_text(unsigned char *to, const char *text) {
    size_t length = strlen(text);
    return *to = (unsigned char)length, memcpy(to + 1, text, length), length + 1;
}
static void change_operator(void) {
    const struct op *other = onnx_ops_table.operators[below((size_t)onnx_ops_table.operator_count)];
    unsigned char names[600];
    const struct field *field = draw(NAMES);
    size_t size = put_text(names, other->domain);
    size += put_text(names + size, other->name);
    if (field) splice(field->at, field->size, names, size);
}
static void remove_attribute(void) {
    const struct field *field = draw(ATTRIBUTE), *count = draw(ATTRIBUTE_COUNT);
    if (!field || !count) return;
    mutated.bytes[count->at] = (unsigned char)(count->type - 1);
    splice(field->at, field->size, 0, 0);
}
/* Write one of the operator's attributes before the others, most times with a value that it may have. */
static void add_attribute(void) {
    const struct field *counts = draw(ATTRIBUTE_COUNT);
    unsigned char content[1024];
    if (!op || !op->attribute_count || !counts || counts->type >= MOST_ATTRIBUTES) return;
    const struct attribute *a = &op->attributes[below((size_t)op->attribute_count)];
    size_t size = put_text(content, a->names[below((size_t)a->name_count)]), count = 1;
    int kind = below(8) ? (int)a->kind : (int)below(TEXT + 1), type = kind == FLOAT || kind == FLOATS ? 1 : 7;
    if (kind == TENSOR) return;
    const char *choice = kind == STRING && a->choice_count ? a->choices[below((size_t)a->choice_count)] : "text";
    if (kind == STRING || kind == TEXT) count = strlen(choice);
    else if (kind == INTS || kind == FLOATS) {
        int64_t spread = a->longest - a->shortest;
        count = (size_t)a->shortest + below(spread < 0 || spread > 8 ? 9 : (size_t)spread + 1);
        count = count > 32 ? 32 : count;
    }
    uint16_t stated = (uint16_t)count;
    content[size++] = (unsigned char)kind, memcpy(content + size, &stated, sizeof stated), size += sizeof stated;
    if (kind == STRING || kind == TEXT) memcpy(content + size, choice, count), size += count;
    else
        for (size_t k = 0; k < count; k++, size += item_size[type]) write_number(content + size, type);
    mutated.bytes[counts->at] = (unsigned char)(counts->type + 1);
    splice(counts->at + 1, 0, content, size);
}
/* Repeat an input at the end, or remove one. */
static void change_inputs(void) {
    static unsigned char content[MOST_MUTATED];
    const struct field *field = draw(INPUT), *count = draw(INPUT_COUNT), *last = field;
    if (!field || !count || field->size > sizeof content) return;
    for (size_t k = 0; k < field_count; k++)
        if (fields[k].kind == INPUT) last = &fields[k];
    int is_added = below(2) && count->type < MOST_INPUTS;
    memcpy(content, mutated.bytes + field->at, field->size);
    mutated.bytes[count->at] = (unsigned char)(count->type + (is_added ? 1 : -1));
    if (is_added) splice(last->at + last->size, 0, content, field->size);
    else splice(field->at, field->size, 0, 0);
}
/* Copy the inputs for the second run; a later mutation makes them other ones. */
static void add_others(void) {
    static unsigned char content[MOST_MUTATED];
    size_t size = 0, end = 0;
    for (size_t k = 0; k < field_count; k++) {
        const struct field *field = &fields[k];
        if (field->kind != INPUT) continue;
        end = field->at + field->size;
        if (!field->type || field->size < 2 || size + field->size > sizeof content) continue;
        memcpy(content + size, mutated.bytes + field->at + 2, field->size - 2), size += field->size - 2;
    }
    if (!end || end >= mutated.size || mutated.bytes[end] & 1) return;
    mutated.bytes[end] = 1, splice(end + 1, 0, content, size);
}
static void change_tail(void) {
    const struct field *field = draw(TAIL);
    unsigned char tail[] = {(unsigned char)below(MODES), (unsigned char)below(FAULTS), (unsigned char)below(256), 0};
    if (!below(3)) tail[2] = 0;
    splice(field ? field->at : mutated.size, field ? field->size : 0, tail, sizeof tail);
}

size_t LLVMFuzzerCustomMutator(unsigned char *bytes, size_t size, size_t most, unsigned seed) {
    static void (*const changes[])(void) = {change_element,  change_size,      change_rank,   change_types,
                                            change_operator, remove_attribute, add_attribute, change_inputs,
                                            add_others,      change_tail};
    static const unsigned weights[] = {6, 6, 1, 1, 1, 1, 5, 1, 1, 3};
    unsigned all = 0;
    random_state = seed;
    for (size_t k = 0; k < COUNT(weights); k++) all += weights[k];
    if (!below(8)) return LLVMFuzzerMutate(bytes, size, most);
    mutated.bytes = bytes, mutated.size = size, mutated.most = most;
    do {
        size_t chosen = 0;
        unsigned drawn = below(all);
        for (; drawn >= weights[chosen]; chosen++) drawn -= weights[chosen];
        scan(bytes, mutated.size);
        changes[chosen]();
    } while (!below(3));
    return mutated.size;
}
