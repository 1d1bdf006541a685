/* Runs nodes in the library under a mock of ONNX Runtime (mock.h), with the sanitizers that it is compiled with.
 *
 *     harness run DESCRIPTION...     infer, make, run twice and release each node
 *     harness faults DESCRIPTION...  do so again and again, while each call of ONNX Runtime's interface and each
 *                                    allocation fails once in turn, and while all allocations fail from each one on
 *     harness registration           the same for the registration of all operators
 *
 * A DESCRIPTION is a file of a node; tests/support/native.py writes it. What is lacking at its end counts as zeros, so
 * that any bytes describe a node. Each finding is a line that begins with FINDING, and makes the exit code 1. */
#include "mock.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

status RegisterCustomOps(void *options, const struct api_base *base);
const char *onnx_ops_choose(void);

enum { IS_ABSENT = 1, IS_CONSTANT = 2 }; /* flags of an input */
enum { MOST_POINTS = 100000 };
enum mode { AS_DESCRIBED, ALL_CONSTANT, SIZES_UNKNOWN, OLD_RUNTIME, MODES };
static const char *const MODE_NAMES[] = {"as described", "all constant", "sizes unknown", "old runtime"};
static struct options *registered; /* the options that have all operators */
static int has_findings;
static long points, refusals;

#define FINDING(...) (has_findings = 1, printf("FINDING: " __VA_ARGS__), printf("\n"))

/* Reading descriptions. */
struct reader {
    const char *at, *end;
};
static const char *take(struct reader *reader, size_t size, void *to) {
    const char *from = reader->at;
    size_t left = (size_t)(reader->end - from), taken = size < left ? size : left;
    reader->at += taken;
    if (to) memset(to, 0, size), memcpy(to, from, taken);
    return taken == size ? from : 0;
}
static size_t take_byte(struct reader *reader) {
    unsigned char byte;
    return take(reader, 1, &byte), byte;
}
static void take_text(struct reader *reader, char *to, size_t room) {
    size_t length = take_byte(reader);
    take(reader, length < room ? length : room - 1, to);
}
/* Read a tensor; returns whether it is small enough. */
static int take_tensor(struct reader *reader, struct value *value) {
    int64_t sizes[MOST_DIMENSIONS];
    int type = (int)take_byte(reader);
    size_t rank = take_byte(reader) % (MOST_DIMENSIONS + 1);
    uint32_t bytes;
    take(reader, rank * sizeof *sizes, sizes), take(reader, sizeof bytes, &bytes);
    if (!make_value(value, type, sizes, rank)) return 0;
    size_t used = bytes < value->bytes ? bytes : value->bytes;
    take(reader, used, value->data), take(reader, bytes - used, 0);
    return 1;
}

/* Read a node of an operator; returns the custom op that ONNX Runtime takes for its types, or 0. */
static const struct custom_op *take_node(struct reader *reader, struct node *node) {
    char domain[64] = "", name[64] = "";
    int fits = 1;
    memset(node, 0, sizeof *node);
    take_text(reader, domain, sizeof domain), take_text(reader, name, sizeof name);
    take_text(reader, node->name, sizeof node->name);
    node->attribute_count = take_byte(reader) % (MOST_ATTRIBUTES + 1);
    for (size_t k = 0; k < node->attribute_count; k++) {
        static const size_t items[] = {[INT] = 8, [INTS] = 8, [STRING] = 1, [FLOAT] = 4, [FLOATS] = 4, [TENSOR] = 0};
        struct given *a = &node->attributes[k];
        uint16_t count;
        take_text(reader, a->name, sizeof a->name);
        a->kind = (int)take_byte(reader) % (TENSOR + 1);
        if (a->kind == TEXT) a->kind = STRING; /* to ONNX Runtime they are the same */
        if (a->kind == TENSOR && !take_tensor(reader, &a->tensor)) fits = 0;
        if (a->kind == TENSOR) continue;
        take(reader, sizeof count, &count);
        a->count = a->kind == INT || a->kind == FLOAT ? 1 : count;
        if (!(a->content = take(reader, a->count * items[a->kind], 0))) fits = 0;
    }
    node->input_count = take_byte(reader) % (MOST_INPUTS + 1);
    for (size_t k = 0; k < node->input_count; k++) {
        size_t flags = take_byte(reader);
        node->is_constant[k] = (flags & IS_CONSTANT) != 0;
        if (!(flags & IS_ABSENT) && !take_tensor(reader, &node->inputs[k])) fits = 0;
        node->known[k] = node->inputs[k].info;
    }
    for (size_t d = 0; d < registered->domain_count && fits; d++)
        for (size_t k = 0; k < registered->domains[d]->count; k++) {
            const struct custom_op *custom = registered->domains[d]->custom_ops[k];
            int matches = !strcmp(custom->op->domain, domain) && !strcmp(custom->op->name, name);
            int64_t last = custom->op->input_count - 1;
            for (size_t i = 0; i < node->input_count && matches; i++) {
                int type = node->inputs[i].info.type, accepts_more = custom->op->inputs[last].presence == VARIADIC;
                matches = ((int64_t)i <= last || accepts_more) &&
                          (!type || type == custom->overload->types[(int64_t)i < last ? (int64_t)i : last]);
            }
            if (matches) return custom;
        }
    return 0;
}
static void release_node(struct node *node) {
    for (size_t k = 0; k < MOST_ATTRIBUTES; k++) unmake_value(&node->attributes[k].tensor);
    for (size_t k = 0; k < MOST_INPUTS; k++) unmake_value(&node->inputs[k]);
}
static void set_mode(struct node *node, enum mode mode) {
    api_version = mode == OLD_RUNTIME ? 20 : WITH_DATA_REFERENCE;
    for (size_t k = 0; k < node->input_count; k++) {
        node->is_constant[k] = mode == ALL_CONSTANT || (mode != SIZES_UNKNOWN && node->is_constant[k]);
        for (size_t a = 0; a < node->known[k].rank && mode == SIZES_UNKNOWN; a++) {
            node->known[k].sizes[a] = -1;
            snprintf(node->known[k].names[a], sizeof node->known[k].names[a], "%s", a % 2 ? "N" : "");
        }
    }
}

/* The life of a node: what was inferred, its two runs, and the message if it was refused. */
struct life {
    struct context inferred, runs[2];
    char refusal[4200];
};
static int is_refused(struct life *life, status error) {
    if (!error) return 0;
    snprintf(life->refusal, sizeof life->refusal, "%s", message_of(error));
    return ReleaseStatus(error), 1;
}
static void live(const struct custom_op *custom, const struct node *node, struct life *life) {
    void *kernel = 0;
    memset(life, 0, sizeof *life);
    life->inferred = life->runs[0] = life->runs[1] = (struct context){.node = node, .overload = custom->overload};
    status error = infer(custom, &life->inferred);
    if (error) ReleaseStatus(error); /* as ONNX Runtime does */
    if (!is_refused(life, create_kernel(custom, 0, node, &kernel)) && !kernel) FINDING("neither a kernel nor an error");
    if (*life->refusal && kernel) FINDING("a kernel beside an error: %s", life->refusal);
    for (int k = 0; k < 2 && !*life->refusal; k++) is_refused(life, compute(kernel, &life->runs[k]));
    free(kernel);
}
static void release_life(struct life *life) {
    for (int k = 0; k < 2; k++)
        for (size_t o = 0; o < MAX_OUTPUTS; o++) unmake_value(&life->runs[k].outputs[o]);
}
static int has_same_shape(const struct info *a, const struct info *b) {
    return a->type == b->type && a->rank == b->rank && !memcmp(a->sizes, b->sizes, a->rank * sizeof *a->sizes);
}
static int has_same_outputs(const struct context *a, const struct context *b) {
    for (size_t k = 0; k < MAX_OUTPUTS; k++) {
        const struct value *x = &a->outputs[k], *y = &b->outputs[k];
        if (!x->pages != !y->pages) return 0;
        if (x->pages && (!has_same_shape(&x->info, &y->info) || memcmp(x->data, y->data, x->bytes))) return 0;
    }
    return 1;
}
static int is_same_life(const struct life *a, const struct life *b) {
    return !strcmp(a->refusal, b->refusal) && has_same_outputs(&a->runs[0], &b->runs[0]) &&
           has_same_outputs(&a->runs[1], &b->runs[1]);
}
/* Whether no shape was inferred that isn't true. */
static int is_part_of(const struct context *inferred, const struct context *expected) {
    for (size_t k = 0; k < MAX_OUTPUTS; k++) {
        const struct info *a = &inferred->reported[k], *b = &expected->reported[k];
        if (a->type && !has_same_shape(a, b)) return 0;
    }
    return 1;
}

/* Whether a message reports a lack of memory, in the words of the library, compiled code or ONNX Runtime. */
static int is_of_memory(const char *message) {
    static const char *const causes[] = {"no room", "can't be allocated", "has raised an exception"};
    for (size_t k = 0; k < COUNT(causes); k++)
        if (strstr(message, causes[k])) return 1;
    return 0;
}
enum fault { CALL, ALLOCATION, ALL_LATER_ALLOCATIONS, FAULTS };
static const char *const FAULT_NAMES[] = {"call", "allocation", "allocations from"};
static void set_faults(enum fault fault, long at) {
    calls = (struct faults){0, fault == CALL ? at : 0, 0};
    allocations = (struct faults){0, fault == CALL ? 0 : at, fault == ALL_LATER_ALLOCATIONS};
    failed_call = "";
}
static long count_of(enum fault fault) { return fault == CALL ? calls.count : allocations.count; }
static int has_cause(enum fault fault, const char *message) {
    return fault == CALL ? strstr(message, "injected into ") && strstr(message, failed_call) : is_of_memory(message);
}

/* Whether a refusal doesn't show a value, for lack of memory. */
static int is_shown_in_part(const struct life *life, const struct life *expected) {
    return *expected->refusal && strstr(life->refusal, "(too long)");
}

static void check_faults(const char *path, const struct custom_op *custom, const struct node *node, enum mode mode) {
    static struct life expected, faulty, next;
    long counts[FAULTS];
    live(custom, node, &expected); /* which also makes what is made once */
    release_life(&expected), set_faults(CALL, 0);
    live(custom, node, &expected);
    for (int fault = 0; fault < FAULTS; fault++) counts[fault] = count_of((enum fault)fault);
    struct books before = books;
    for (enum fault fault = CALL; fault < FAULTS; fault++)
        for (long n = 1; n <= counts[fault]; n++, points++) {
            char where[300];
            set_faults(fault, n), live(custom, node, &faulty);
            snprintf(where, sizeof where, "%s, %s, %s %ld %s", path, MODE_NAMES[mode], FAULT_NAMES[fault], n,
                     failed_call);
            set_faults(CALL, 0), live(custom, node, &next);
            refusals += *faulty.refusal != 0;
            if (!is_part_of(&faulty.inferred, &expected.inferred)) FINDING("%s: a wrong shape is inferred", where);
            if (!*faulty.refusal || !strcmp(faulty.refusal, expected.refusal)) {
                if (!is_same_life(&faulty, &expected)) FINDING("%s: another result", where);
            } else if (!has_cause(fault, faulty.refusal) && !is_shown_in_part(&faulty, &expected))
                FINDING("%s: another cause: %s", where, faulty.refusal);
            if (!is_same_life(&next, &expected)) FINDING("%s: the next one differs: %s", where, next.refusal);
            release_life(&faulty), release_life(&next);
            if (memcmp(&books, &before, sizeof books))
                FINDING("%s: %+ld blocks, %+ld statuses, %+ld infos, %+ld values", where, books.blocks - before.blocks,
                        books.statuses - before.statuses, books.infos - before.infos, books.values - before.values);
            before = books;
        }
    release_life(&expected);
}

/* Registration. */
static struct options *options_for_all(void) {
    static struct options options;
    memset(&options, 0, sizeof options);
    for (int64_t k = 0; k < onnx_ops_table.operator_count; k++) {
        const char *domain = onnx_ops_table.operators[k].domain;
        char *key = options.entries[options.entry_count].key;
        snprintf(key, sizeof options.entries->key, "onnx_ops.register.%s", *domain ? domain : "ai.onnx");
        size_t same = 0;
        while (strcmp(options.entries[same].key, key)) same++;
        if (same == options.entry_count) options.entry_count++;
    }
    struct options *copy = mmap(0, sizeof options, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memcpy(copy, &options, sizeof options);
}
static int have_same_operators(const struct options *a, const struct options *b) {
    if (a->domain_count != b->domain_count) return 0;
    for (size_t d = 0; d < a->domain_count; d++) {
        const struct domain_of_options *x = a->domains[d], *y = b->domains[d];
        if (strcmp(x->name, y->name) || x->count != y->count) return 0;
        if (memcmp(x->custom_ops, y->custom_ops, x->count * sizeof *x->custom_ops)) return 0;
    }
    return 1;
}
/* Register while something fails, and again; returns whether it was reached. A process does this only once. */
static int check_registration(enum fault fault, long n, struct books *expected) {
    struct options *options = options_for_all(), *others = options_for_all();
    char where[100];
    set_faults(fault, n);
    status error = RegisterCustomOps(options, &mock);
    int is_reached = count_of(fault) >= n;
    snprintf(where, sizeof where, "registration, %s %ld %s", FAULT_NAMES[fault], n, failed_call);
    set_faults(CALL, 0);
    if (error && !has_cause(fault, message_of(error))) FINDING("%s: another cause: %s", where, message_of(error));
    int is_refused = error != 0;
    if (error) ReleaseStatus(error);
    struct options first = *options;
    if (RegisterCustomOps(options, &mock)) FINDING("%s: the next one fails", where);
    if (!n) *expected = books;
    if (memcmp(&books, expected, sizeof books))
        FINDING("%s: %+ld blocks, %+ld statuses, %+ld domains", where, books.blocks - expected->blocks,
                books.statuses - expected->statuses, books.domains - expected->domains);
    if (RegisterCustomOps(others, &mock)) FINDING("%s: one on other options fails", where);
    if (!have_same_operators(options, others)) FINDING("%s: the next one has other operators", where);
    if (!is_refused && !have_same_operators(&first, options)) FINDING("%s: no error, but operators lack", where);
    return is_reached;
}
static void check_registrations(void) {
    struct shared { /* between processes */
        struct books expected;
        int is_reached, has_findings;
    } *shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (enum fault fault = CALL; fault < FAULTS; fault++) {
        shared->is_reached = 1;
        for (long n = 0; shared->is_reached && n < MOST_POINTS; n++) {
            int code = 0;
            fflush(stdout);
            pid_t child = fork();
            if (!child) {
                shared->is_reached = check_registration(fault, n, &shared->expected);
                shared->has_findings |= has_findings;
                fflush(stdout);
                _exit(0);
            }
            waitpid(child, &code, 0);
            int may_end = fault == ALL_LATER_ALLOCATIONS && n == 1; /* there never was memory for a status */
            if (code && !(may_end && WIFSIGNALED(code) && WTERMSIG(code) == SIGABRT))
                FINDING("registration, %s %ld: the process ends with %d", FAULT_NAMES[fault], n, code);
            points += n && shared->is_reached;
        }
    }
    has_findings |= shared->has_findings;
}

static void check_file(const char *path, int with_faults) {
    static char content[1 << 20];
    static struct node node;
    static struct life life;
    FILE *file = fopen(path, "rb");
    if (!file) return (void)FINDING("%s can't be read", path);
    struct reader reader = {content, content + fread(content, 1, sizeof content, file)};
    fclose(file);
    const struct custom_op *custom = take_node(&reader, &node);
    if (!custom) printf("%s: ONNX Runtime finds no operator\n", path);
    for (enum mode mode = AS_DESCRIBED; mode < MODES && custom; mode++) {
        set_mode(&node, mode);
        if (with_faults) check_faults(path, custom, &node, mode);
        else {
            live(custom, &node, &life), release_life(&life);
            printf("%s, %s: %s\n", path, MODE_NAMES[mode], *life.refusal ? life.refusal : "computed");
        }
    }
    release_node(&node);
}

int main(int count, char **words) {
    const char *command = count > 1 ? words[1] : "";
    onnx_ops_choose(); /* RegisterCustomOps reports its error */
    if (!strcmp(command, "registration")) check_registrations();
    else {
        registered = options_for_all();
        status error = RegisterCustomOps(registered, &mock);
        if (error) return fprintf(stderr, "%s\n", message_of(error)), 2;
        for (int k = 2; k < count; k++) check_file(words[k], !strcmp(command, "faults"));
    }
    printf("%ld points, of which %ld were refused\n", points, refusals);
    return has_findings;
}
