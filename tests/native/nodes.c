/* Reading nodes from descriptions, and their lives: with and without faults, and what must be true of these. */
#include "nodes.h"
#include <stdlib.h>
#include <string.h>

void onnx_ops_add(struct op *const *ops, size_t count);
void onnx_ops_survey(int begins);

const char *const MODE_NAMES[] = {"as described", "all constant",   "sizes unknown",
                                  "old runtime",  "compiled later", "surveyed", "without Python"};
const char *const FAULT_NAMES[] = {"call", "allocation", "allocations from", "interrupt"};
struct options *registered;
int has_findings;

/* Settings of AddressSanitizer: what is freed stays unusable for a while, in less memory than by default. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "quarantine_size_mb=16:allocator_may_return_null=1"; }

/* Reading descriptions. */
const char *take(struct reader *reader, size_t size, void *to) {
    const char *from = reader->at;
    size_t left = (size_t)(reader->end - from), taken = size < left ? size : left;
    reader->at += taken;
    if (to) memset(to, 0, size);
    if (to && taken) memcpy(to, from, taken);
    return taken == size ? from : 0;
}
size_t take_byte(struct reader *reader) {
    unsigned char byte;
    return take(reader, 1, &byte), byte;
}
static void take_text(struct reader *reader, char *to, size_t room) {
    size_t length = take_byte(reader);
    take(reader, length < room ? length : room - 1, to);
}
/* The elements of a tensor of strings: each is a byte with its length, and its bytes. */
static void take_strings(struct reader *reader, struct value *value) {
    struct string *strings = value->data;
    for (size_t k = 0; k < value->bytes / sizeof *strings; k++) {
        strings[k].size = take_byte(reader);
        char *content = new_content(strings[k].size);
        take(reader, strings[k].size, content), strings[k].at = content;
    }
}
/* Read a tensor of a type, of which the description has the rank, the sizes, and the number of bytes of the elements;
 * returns whether it is small enough. */
static int take_sized(struct reader *reader, int type, struct value *value) {
    int64_t sizes[MOST_DIMENSIONS];
    size_t rank = take_byte(reader) % (MOST_DIMENSIONS + 1);
    uint32_t bytes;
    take(reader, rank * sizeof *sizes, sizes), take(reader, sizeof bytes, &bytes);
    size_t left = (size_t)(reader->end - reader->at);
    if (bytes > left) bytes = (uint32_t)left;
    struct reader elements = {reader->at, reader->at + bytes};
    take(reader, bytes, 0);
    if (!make_value(value, type, sizes, rank)) return 0;
    if (type == STRINGS) take_strings(&elements, value);
    else take(&elements, value->bytes, value->data);
    return 1;
}
static int take_tensor(struct reader *reader, struct value *value) {
    int type = (int)take_byte(reader);
    return take_sized(reader, type, value);
}

/* A function of an OrtCustomOp, by its position in the header's struct. */
#define FUNCTION(custom, position, result, ...) ((result (*)(__VA_ARGS__))(custom)->functions[position])

/* Whether ONNX Runtime takes a custom op for a node, by what the custom op's functions say. */
static int fits_node(const struct custom_op *custom, const char *domain, const char *name, const struct node *node) {
    enum { NAME = 1, INPUT_TYPE = 3, INPUT_COUNT, CHARACTERISTIC = 9 };
    typedef const void *pointer;
    size_t last = FUNCTION(custom, INPUT_COUNT, size_t, pointer)(custom) - 1;
    if (strcmp(domain, custom->op->domain) || strcmp(FUNCTION(custom, NAME, const char *, pointer)(custom), name)) return 0;
    for (size_t k = 0; k < node->input_count || k <= last; k++) {
        size_t position = k < last ? k : last;
        int type = k < node->input_count ? node->inputs[k].info.type : 0;
        int presence = FUNCTION(custom, CHARACTERISTIC, int, pointer, size_t)(custom, position);
        if (k > last && presence != VARIADIC) return 0;
        if (!type && presence != OPTIONAL) return 0;
        if (type && type != FUNCTION(custom, INPUT_TYPE, int, pointer, size_t)(custom, position)) return 0;
    }
    return 1;
}
static const struct custom_op *find_custom(const char *domain, const char *name, const struct node *node) {
    for (size_t d = 0; d < registered->domain_count; d++)
        for (size_t k = 0; k < registered->domains[d]->count; k++)
            if (fits_node(registered->domains[d]->custom_ops[k], domain, name, node))
                return registered->domains[d]->custom_ops[k];
    return 0;
}

/* Read an attribute; returns whether it is complete. */
static int take_attribute(struct reader *reader, struct given *a) {
    static const size_t items[] = {[INT] = 8, [INTS] = 8, [STRING] = 1, [FLOAT] = 4, [FLOATS] = 4};
    uint16_t count;
    take_text(reader, a->name, sizeof a->name);
    a->kind = (int)take_byte(reader) % (TENSOR + 1);
    if (a->kind == TEXT) a->kind = STRING; /* to ONNX Runtime they are the same */
    if (a->kind == TENSOR) return take_tensor(reader, &a->tensor);
    take(reader, sizeof count, &count);
    a->count = a->kind == INT || a->kind == FLOAT ? 1 : count;
    a->content = take(reader, a->count * items[a->kind], 0);
    return a->content != 0;
}

/* Read a node, and the inputs of its second run if there are any; returns the custom op that ONNX Runtime takes for its
 * operator and types, or 0. */
const struct custom_op *take_node(struct reader *reader, struct node *node) {
    char domain[64] = "", name[64] = "";
    int fits = 1;
    memset(node, 0, sizeof *node);
    take_text(reader, domain, sizeof domain), take_text(reader, name, sizeof name);
    take_text(reader, node->name, sizeof node->name);
    node->attribute_count = take_byte(reader) % (MOST_ATTRIBUTES + 1);
    for (size_t k = 0; k < node->attribute_count; k++) fits &= take_attribute(reader, &node->attributes[k]);
    node->input_count = take_byte(reader) % (MOST_INPUTS + 1);
    for (size_t k = 0; k < node->input_count; k++) {
        size_t flags = take_byte(reader);
        node->has_constant[k] = (flags & IS_CONSTANT) != 0;
        if (!(flags & IS_ABSENT)) fits &= take_tensor(reader, &node->inputs[k]);
    }
    node->has_others = take_byte(reader) & 1;
    for (size_t k = 0; k < node->input_count && node->has_others; k++)
        if (node->inputs[k].info.type) fits &= take_sized(reader, node->inputs[k].info.type, &node->others[k]);
    return fits ? find_custom(domain, name, node) : 0;
}
void release_node(struct node *node) {
    for (size_t k = 0; k < MOST_ATTRIBUTES; k++) unmake_value(&node->attributes[k].tensor);
    for (size_t k = 0; k < MOST_INPUTS; k++) unmake_value(&node->inputs[k]), unmake_value(&node->others[k]);
}
void set_mode(struct node *node, enum mode mode) {
    api_version = mode == OLD_RUNTIME ? 20 : WITH_DATA_REFERENCE;
    for (size_t k = 0; k < node->input_count; k++) {
        node->is_constant[k] = mode == ALL_CONSTANT || (mode != SIZES_UNKNOWN && node->has_constant[k]);
        node->known[k] = node->inputs[k].info;
        for (size_t a = 0; a < node->known[k].rank && (mode == SIZES_UNKNOWN || node->has_others); a++) {
            node->known[k].sizes[a] = -1;
            snprintf(node->known[k].names[a], sizeof node->known[k].names[a], "%s", a % 2 ? "N" : "");
        }
    }
}

/* Registration. */
struct options *options_for_all(void) {
    struct options *options = new_options();
    for (int64_t k = 0; k < onnx_ops_table.operator_count; k++) {
        const char *domain = onnx_ops_table.operators[k]->domain;
        char *key = options->entries[options->entry_count].key;
        snprintf(key, sizeof options->entries->key, "onnx_ops.register.%s", *domain ? domain : "ai.onnx");
        size_t same = 0;
        while (strcmp(options->entries[same].key, key)) same++;
        if (same == options->entry_count) options->entry_count++;
    }
    return options;
}
status register_all(struct options *options) {
    struct op *custom[16];
    size_t count = 0;
    for (int64_t k = 0; k < custom_table.operator_count && k < (int64_t)COUNT(custom); k++)
        custom[count++] = custom_table.operators[k];
    onnx_ops_add(custom, count);
    status error = RegisterCustomOps(options, &mock);
    return onnx_ops_add(0, 0), error;
}

/* Lives. */
static int is_refused(char *refusal, size_t room, status error) {
    if (!error) return 0;
    snprintf(refusal, room, "%s", message_of(error));
    return ReleaseStatus(error), 1;
}
static int have_faults(void) { return calls.at || allocations.at || interrupts.at; }
static int is_interrupted(void) { return interrupts.at && interrupts.count >= interrupts.at; }

void live(const struct custom_op *custom, const struct node *node, enum mode mode, struct life *life) {
    size_t room = sizeof *life->refusals;
    void *kernel = 0;
    memset(life, 0, sizeof *life);
    life->inferred = (struct context){.node = node, .inputs = node->inputs, .overload = custom->overload};
    if (mode == COMPILED_LATER || mode == SURVEYED) forget(custom->op);
    if (mode == SURVEYED) onnx_ops_survey(1);
    if (mode == WITHOUT_PYTHON) disconnect_python();
    /* ONNX Runtime may make a kernel without inference, and ignores errors in it. */
    status error = mode == SURVEYED ? 0 : infer(custom, &life->inferred);
    if (error) ReleaseStatus(error);
    int refused = is_refused(life->refusals[0], room, create_kernel(custom, 0, node, &kernel));
    if (refused && kernel) FINDING("a kernel beside an error: %s", life->refusals[0]);
    if (!refused && !kernel && mode != SURVEYED && !is_interrupted()) FINDING("neither a kernel nor an error");
    if (mode == SURVEYED) onnx_ops_survey(0);
    for (int k = 0; k < RUNS && !refused; k++) {
        life->runs[k] = life->inferred, memset(life->runs[k].reported, 0, sizeof life->runs[k].reported);
        if (k == 1 && node->has_others) life->runs[k].inputs = node->others;
        is_refused(life->refusals[1 + k], room, compute(kernel, &life->runs[k]));
    }
    if (mode == COMPILED_LATER || mode == SURVEYED) remember(custom->op);
    if (mode == WITHOUT_PYTHON) connect_python();
    FUNCTION(custom, 8, void, void *)(kernel);
    int is_the_same = !strcmp(life->refusals[1], life->refusals[RUNS]);
    is_the_same = is_the_same && has_same_outputs(&life->runs[0], &life->runs[RUNS - 1]);
    if (!is_the_same && !have_faults()) FINDING("the last run differs from the first one: %s", life->refusals[RUNS]);
}
void release_life(struct life *life) {
    for (int k = 0; k < RUNS; k++)
        for (size_t o = 0; o < MAX_OUTPUTS; o++) unmake_value(&life->runs[k].outputs[o]);
}
static int has_same_shape(const struct info *a, const struct info *b) {
    return a->type == b->type && a->rank == b->rank && !memcmp(a->sizes, b->sizes, a->rank * sizeof *a->sizes);
}
static int has_same_content(const struct value *a, const struct value *b) {
    const struct string *x = a->data, *y = b->data;
    if (a->info.type != STRINGS) return !memcmp(x, y, a->bytes);
    for (size_t k = 0; k < a->bytes / sizeof *x; k++)
        if (x[k].size != y[k].size || (x[k].size && memcmp(x[k].at, y[k].at, x[k].size))) return 0;
    return 1;
}
int has_same_outputs(const struct context *a, const struct context *b) {
    for (size_t k = 0; k < MAX_OUTPUTS; k++) {
        const struct value *x = &a->outputs[k], *y = &b->outputs[k];
        if (!x->pages != !y->pages) return 0;
        if (x->pages && (!has_same_shape(&x->info, &y->info) || !has_same_content(x, y))) return 0;
    }
    return 1;
}
int is_same_life(const struct life *a, const struct life *b) {
    for (int k = 0; k < STEPS; k++)
        if (strcmp(a->refusals[k], b->refusals[k])) return 0;
    for (int k = 0; k < RUNS; k++)
        if (!has_same_outputs(&a->runs[k], &b->runs[k])) return 0;
    return 1;
}
/* Whether no shape was inferred that isn't true. That of a node that is refused doesn't matter. */
static int is_part_of(const struct life *life, const struct life *expected_life) {
    const struct context *inferred = &life->inferred, *expected = &expected_life->inferred;
    for (size_t k = 0; k < MAX_OUTPUTS; k++) {
        const struct info *a = &inferred->reported[k], *b = &expected->reported[k];
        if (a->type && !has_same_shape(a, b)) return *expected_life->refusals[0] != 0;
    }
    return 1;
}

/* Faults. */
void set_faults(enum fault fault, long at) {
    int is_of_memory = fault == ALLOCATION || fault == ALL_LATER_ALLOCATIONS;
    calls = (struct faults){0, fault == CALL ? at : 0, 0};
    allocations = (struct faults){0, is_of_memory ? at : 0, fault == ALL_LATER_ALLOCATIONS};
    interrupts = (struct faults){0, fault == INTERRUPT ? at : 0, 0};
    failed_call = "";
}
long count_of(enum fault fault) {
    return fault == CALL ? calls.count : fault == INTERRUPT ? interrupts.count : allocations.count;
}
/* Whether a message reports a lack of memory, in the words of the library, compiled code or ONNX Runtime. */
static int is_of_memory(const char *message) {
    static const char *const causes[] = {"no room", "can't be allocated", "has raised an exception"};
    for (size_t k = 0; k < COUNT(causes); k++)
        if (strstr(message, causes[k])) return 1;
    return 0;
}
int has_cause(enum fault fault, const char *message) {
    if (fault == INTERRUPT) return strstr(message, "interrupted") || strstr(message, "not made to run");
    return fault == CALL ? strstr(message, "injected into ") && strstr(message, failed_call) : is_of_memory(message);
}

/* Check a step of a life with a fault: an error with its cause, or what is there without one. After an interrupt there
 * may be neither, as Python then raises an exception. */
static void check_step(const char *where, int step, enum fault fault, const struct life *life,
                       const struct life *expected) {
    const char *got = life->refusals[step], *wanted = expected->refusals[step];
    if (!strcmp(got, wanted)) {
        int is_same = !step || has_same_outputs(&life->runs[step - 1], &expected->runs[step - 1]);
        if (!is_same && fault != INTERRUPT) FINDING("%s: another result of step %d", where, step);
    } else if (!*got && fault != INTERRUPT) FINDING("%s: no error in step %d", where, step);
    else if (*got && !has_cause(fault, got)) FINDING("%s: another cause: %s", where, got);
}

/* Live with a fault, and then without one. */
void live_with_fault(const char *path, const struct custom_op *custom, const struct node *node, enum mode mode,
                     enum fault fault, long n, const struct life *expected) {
    static struct life faulty, next;
    char where[300];
    struct books before = books;
    set_faults(fault, n), live(custom, node, mode, &faulty);
    snprintf(where, sizeof where, "%s, %s, %s %ld %s", path, MODE_NAMES[mode], FAULT_NAMES[fault], n, failed_call);
    set_faults(CALL, 0), live(custom, node, mode, &next);
    if (!is_part_of(&faulty, expected)) FINDING("%s: a wrong shape is inferred", where);
    for (int step = 0; step < STEPS && !(step && *faulty.refusals[0]); step++)
        check_step(where, step, fault, &faulty, expected);
    if (!is_same_life(&next, expected)) FINDING("%s: the next one differs: %s", where, next.refusals[0]);
    release_life(&faulty), release_life(&next);
    if (memcmp(&books, &before, sizeof books))
        FINDING("%s: %+ld blocks, %+ld statuses, %+ld infos, %+ld values", where, books.blocks - before.blocks,
                books.statuses - before.statuses, books.infos - before.infos, books.values - before.values);
}
