/* Runs nodes in the library under a mock of ONNX Runtime (mock.h), with the sanitizers that it is compiled with.
 *
 *     harness run DESCRIPTION...      infer, make, run three times and release each node
 *     harness faults DESCRIPTION...   do so again and again, while each call of ONNX Runtime's interface and of Python,
 *                                     and each allocation fails once in turn, while Python is interrupted in each of
 *                                     its calls, and while all allocations fail from each one on
 *     harness registration [EVERY]    the same for the registration of all operators, one in so many of them
 *     harness operators               list the registered custom ops with the type of their first input
 *     harness defaults                the same for options that state nothing
 *     harness plans                   plan and run calls of an operator with what no plan and kernel should return
 *     harness reshape                 call what the library has of Numba's own functions
 *     harness threads SECONDS DESCRIPTION...
 *                                     eight threads run the same nodes, while three others make, run and release such
 *                                     nodes, and register all operators on other options
 *
 * A DESCRIPTION is a file of a node; tests/support/native.py writes it. Each finding is a line that begins with
 * FINDING, and makes the exit code 1. */
#include "nodes.h"
#include "plan.h"
#include "run.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_POINTS = 100000, MOST_BYTES = 1 << 20 };
static long points, results[2]; /* results: refused, computed */

static void check_faults(const char *path, const struct custom_op *custom, const struct node *node, enum mode mode) {
    static struct life expected;
    long counts[FAULTS];
    live(custom, node, mode, &expected); /* which also makes what is made once */
    release_life(&expected), set_faults(CALL, 0);
    live(custom, node, mode, &expected);
    for (int fault = 0; fault < FAULTS; fault++) counts[fault] = count_of((enum fault)fault);
    counts[ALL_LATER_ALLOCATIONS] = counts[ALLOCATION];
    for (enum fault fault = CALL; fault < FAULTS; fault++)
        for (long n = 1; n <= counts[fault]; n++, points++)
            live_with_fault(path, custom, node, mode, fault, n, &expected);
    release_life(&expected);
}

/* Registration. */
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
    status error = register_all(options);
    int is_reached = count_of(fault) >= n;
    snprintf(where, sizeof where, "registration, %s %ld %s", FAULT_NAMES[fault], n, failed_call);
    set_faults(CALL, 0);
    if (error && !has_cause(fault, message_of(error))) FINDING("%s: another cause: %s", where, message_of(error));
    int is_refused = error != 0;
    if (error) ReleaseStatus(error);
    struct options first = *options;
    if (register_all(options)) FINDING("%s: the next one fails", where);
    if (!n) *expected = books;
    if (memcmp(&books, expected, sizeof books))
        FINDING("%s: %+ld blocks, %+ld statuses, %+ld domains", where, books.blocks - expected->blocks,
                books.statuses - expected->statuses, books.domains - expected->domains);
    if (register_all(others)) FINDING("%s: one on other options fails", where);
    if (!have_same_operators(options, others)) FINDING("%s: the next one has other operators", where);
    if (!is_refused && !have_same_operators(&first, options)) FINDING("%s: no error, but operators lack", where);
    release_options(options), release_options(others);
    return is_reached;
}
static void check_registrations(long every) {
    struct shared { /* between processes */
        struct books expected;
        int is_reached, has_findings;
    } *common = mmap(0, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (enum fault fault = CALL; fault < INTERRUPT; fault++) {
        common->is_reached = 1;
        for (long n = 0; common->is_reached && n < MOST_POINTS; n += n ? every : 1) {
            int code = 0;
            fflush(stdout);
            pid_t child = fork();
            if (!child) {
                common->is_reached = check_registration(fault, n, &common->expected);
                common->has_findings |= has_findings;
                exit(0);
            }
            waitpid(child, &code, 0);
            int may_end = fault == ALL_LATER_ALLOCATIONS && n == 1; /* there never was memory for a status */
            if (code && !(may_end && WIFSIGNALED(code) && WTERMSIG(code) == SIGABRT))
                FINDING("registration, %s %ld: the process ends with %d", FAULT_NAMES[fault], n, code);
            points += n && common->is_reached;
        }
    }
    has_findings |= common->has_findings;
}

static void list_operators(void) {
    enum { INFER_OUTPUTS = 18 };
    for (size_t d = 0; d < registered->domain_count; d++)
        for (size_t k = 0; k < registered->domains[d]->count; k++) {
            const struct custom_op *custom = registered->domains[d]->custom_ops[k];
            printf("%s.%s %lld%s\n", custom->op->domain, custom->op->name, (long long)custom->overload->types[0],
                   custom->functions[INFER_OUTPUTS] ? "" : " without inference");
        }
}

/* Nodes that threads share. */
struct shared {
    const char *path;
    char *content;
    struct node node;
    const struct custom_op *custom;
    void *kernel;
    struct life expected;
};
static struct shared *shared;
static size_t shared_count;
static int is_over;
static long run_count, made_count, registration_count;
#define ADD(counter) __atomic_add_fetch(&(counter), 1, __ATOMIC_RELAXED)

/* Read a file's node; returns the custom op for it, or 0. The node needs the content as long as it lives. */
static const struct custom_op *read_node(const char *path, char *content, struct node *node) {
    FILE *file = fopen(path, "rb");
    if (!file) return FINDING("%s can't be read", path), NULL;
    struct reader reader = {content, content + fread(content, 1, MOST_BYTES, file)};
    fclose(file);
    const struct custom_op *custom = take_node(&reader, node);
    if (!custom) printf("%s: ONNX Runtime finds no operator\n", path);
    return custom;
}
static struct shared *draw(unsigned *seed) {
    *seed = *seed * 1664525 + 1013904223;
    return &shared[(*seed >> 8) % shared_count];
}
static void run_shared(const struct shared *s, void *kernel, int number) {
    struct life life = {.runs[0] = s->expected.runs[number]};
    memset(life.runs[0].outputs, 0, sizeof life.runs[0].outputs);
    status error = compute(kernel, &life.runs[0]);
    if (strcmp(message_of(error), s->expected.refusals[1 + number]) ||
        !has_same_outputs(&life.runs[0], &s->expected.runs[number]))
        FINDING("%s: another result in a thread: %s", s->path, message_of(error));
    if (error) ReleaseStatus(error);
    release_life(&life), ADD(run_count);
}
static void *run_nodes(void *number) {
    unsigned seed = (unsigned)(uintptr_t)number;
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
        const struct shared *s = draw(&seed);
        run_shared(s, s->kernel, seed % RUNS);
    }
    return 0;
}
static void *make_nodes(void *number) {
    unsigned seed = (unsigned)(uintptr_t)number;
    for (long k = 0; !k || !__atomic_load_n(&is_over, __ATOMIC_RELAXED); k++) {
        const struct shared *s = draw(&seed);
        struct context inferred = s->expected.inferred;
        void *kernel = 0;
        status error = infer(s->custom, &inferred);
        if (!error) error = create_kernel(s->custom, 0, &s->node, &kernel);
        if (error) FINDING("%s: isn't made in a thread: %s", s->path, message_of(error)), ReleaseStatus(error);
        else run_shared(s, kernel, 0);
        free(kernel), ADD(made_count);
        if (k % 16) continue;
        struct options *options = options_for_all();
        if ((error = register_all(options))) FINDING("isn't registered: %s", message_of(error)), ReleaseStatus(error);
        release_options(options), ADD(registration_count);
    }
    return 0;
}
static void check_threads(unsigned seconds, char **paths, int count) {
    enum { RUNNERS = 8, THREADS = 11 };
    pthread_t threads[THREADS];
    shared = calloc((size_t)count, sizeof *shared);
    for (int k = 0; k < count; k++) {
        struct shared *s = &shared[shared_count];
        memset(s, 0, sizeof *s);
        s->path = paths[k], s->content = malloc(MOST_BYTES);
        if ((s->custom = read_node(paths[k], s->content, &s->node))) {
            set_mode(&s->node, AS_DESCRIBED);
            live(s->custom, &s->node, AS_DESCRIBED, &s->expected);
            status error = create_kernel(s->custom, 0, &s->node, &s->kernel);
            if (error) ReleaseStatus(error); /* a node that is refused isn't shared */
        }
        if (s->kernel) shared_count++;
        else release_life(&s->expected), release_node(&s->node), free(s->content);
    }
    pool = 2;
    for (uintptr_t k = 0; k < THREADS && shared_count; k++)
        if (pthread_create(&threads[k], 0, k < RUNNERS ? run_nodes : make_nodes, (void *)(k + 1))) abort();
    sleep(seconds);
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    for (size_t k = 0; k < THREADS && shared_count; k++) pthread_join(threads[k], 0);
    for (size_t k = 0; k < shared_count; k++) {
        release_life(&shared[k].expected), release_node(&shared[k].node);
        free(shared[k].kernel), free(shared[k].content);
    }
    free(shared);
    printf("%zu nodes, %ld runs, %ld nodes made, %ld registrations\n", shared_count, run_count, made_count,
           registration_count);
}

/* The function of Numba's that compiled code calls: the strides of an array in another shape, as far as it knows them. */
int numba_attempt_nocopy_reshape(intptr_t axes, const intptr_t *shape, const intptr_t *steps, intptr_t new_axes,
                                 const intptr_t *new_shape, intptr_t *new_steps, intptr_t item, int is_fortran);
static void check_reshape(void) {
    static const struct {
        intptr_t steps[3];
        int is_fortran, fits;
    } cases[] = {{{48, 16, 4}, 0, 1}, {{7, 16, 4}, 0, 1}, {{48, 4, 12}, 0, 0}, {{48, 32, 8}, 0, 0}, {{48, 16, 4}, 1, 0}};
    static const intptr_t shape[] = {1, 3, 4}, new_shape[] = {2, 6}, expected[] = {24, 4};
    for (size_t k = 0; k < COUNT(cases); k++) {
        intptr_t steps[] = {-1, -1};
        int fits = numba_attempt_nocopy_reshape(3, shape, cases[k].steps, 2, new_shape, steps, 4, cases[k].is_fortran);
        if (fits != cases[k].fits || (fits && memcmp(steps, expected, sizeof steps)))
            FINDING("reshape, case %zu: %d, strides %ld and %ld", k, fits, (long)steps[0], (long)steps[1]);
    }
}

/* Plans and kernels that are wrong: what a call of these makes of them. */
static struct {
    int64_t returned, rank, shape[2], workspace, tiles;
} made_up;
static int64_t plan_of_call(struct call *call) {
    struct tensor *out = &call->tensors[MAX_INPUTS];
    out->rank = made_up.rank, memcpy(out->shape, made_up.shape, sizeof made_up.shape);
    call->geometry.workspace = made_up.workspace, call->geometry.tiles = made_up.tiles;
    return made_up.returned;
}
static int64_t run_tile_of_call(struct call *call, int64_t tile, void *workspace) {
    if (tile < 0 || tile >= call->geometry.tiles || !workspace != !call->geometry.workspace) return 3;
    if (workspace) memset(workspace, (int)tile, (size_t)call->geometry.workspace);
    return call->geometry.tiles == 5 ? 2 : 0;
}
static void expect(size_t k, const char *what, status error, const char *expected) {
    if (strcmp(message_of(error), expected)) FINDING("%s, case %zu: %s", what, k, message_of(error));
    if (error) ReleaseStatus(error);
}
/* What is reported of an output: no shape of a rank that isn't one, and a new name for a name that there isn't. */
static void check_inference(struct op *op) {
    static struct overload overload;
    static struct node node;
    const int64_t outputs[] = {-1};
    struct custom_op custom = {.op = op, .overload = &overload};
    op->infer = plan_of_call, op->outputs = outputs, op->overloads = &overload;
    made_up.returned = 0;
    for (made_up.rank = -1; made_up.rank <= MAX_RANK + 1; made_up.rank += made_up.rank == 2 ? MAX_RANK - 1 : 1) {
        struct context context = {.node = &node};
        made_up.shape[0] = -100, made_up.shape[1] = 7;
        status error = infer(&custom, &context);
        const struct info *info = &context.reported[0];
        int is_reported = 0 <= made_up.rank && made_up.rank <= MAX_RANK;
        int has_name = info->sizes[0] == -1 && !strncmp(info->names[0], "onnx_ops_", 9);
        if (error || (is_reported && info->rank != (size_t)made_up.rank) || (made_up.rank == 2 && !has_name))
            FINDING("inference of rank %lld: %s", (long long)made_up.rank, message_of(error));
    }
}
void onnx_ops_wait_for_interrupt(int wait); /* refusal.c */
/* Python is not called where it isn't, and while an interrupt waits. */
static void refuse_in_other_words(int64_t number, const struct name *node, struct call *call, struct answer *answer) {
    (void)number, (void)call;
    answer->outcome = REFUSED, snprintf(answer->message, sizeof answer->message, "other words on %s", node->at);
}
static void check_waiting(struct op *op, struct call *call) {
    struct name name = {"n", 1};
    status error = 0;
    call->input_count = 0;
    for (int is_waiting = 0; is_waiting < 2; is_waiting++) {
        if (is_waiting) onnx_ops_wait_for_interrupt(1);
        else disconnect_python();
        if (compile(op, PLAN, 0, 0, &error)) FINDING("a function is compiled without Python");
        expect(0, "compile", error, is_waiting ? "" : "onnx_ops: its operators are compiled by Python, where it has not "
                                                      "been imported");
        const char *expected = is_waiting ? "onnx_ops: interrupted"
                                          : "d.Op: its kernel takes other types or ranks than, for which it runs in "
                                            "Python only, where onnx_ops has not been imported";
        expect(1, "plan", plan(op, &name, -1, call), expected);
        expect(2, "run", run_in_python(op, 0, call, 0), expected);
        if (is_waiting) onnx_ops_wait_for_interrupt(0);
        else connect_python();
    }
    onnx_ops_python.plan = refuse_in_other_words;
    expect(3, "plan", plan(op, &name, -1, call), "other words on n");
    connect_python();
    op->combination_count = 1, op->input_count = 1, call->input_count = 2;
    if (combination(op, call) != -1) FINDING("there is a kernel for more inputs than are declared");
}
/* A refusal is Python's answer, or plain text where Python isn't called or was interrupted. */
static int64_t outcome_of_refusal;
static long interrupt_count;
static void answer_refusal(int64_t number, const struct name *node, const struct refusal *refusal, const char *note,
                           struct answer *answer) {
    (void)number;
    answer->outcome = outcome_of_refusal;
    snprintf(answer->message, sizeof answer->message, "%s, %s, %s", node->at, refusal->argument, note);
}
static void count_interrupt(void) { interrupt_count++; }
static void check_refusals(const struct op *op) {
    static const char plain[] = "d.Op (node 'n'): a = 5 b: r", unread[] = "d.Op: a = 5 b: r", answer[] = "n, a, b";
    const int64_t value = 5;
    const struct refusal refusal = {.argument = "a", .rule = "r", .values = &value, .count = -1};
    const struct name name = {"n", 1};
    const struct {
        int64_t outcome, waits, is_unread;
        const char *expected;
        int code;
        long interrupts;
    } cases[] = {
        {REFUSED, 0, 0, answer, INVALID_ARGUMENT, 0}, {FAILED, 0, 0, answer, FAIL, 0},
        {UNFINISHED, 0, 0, plain, INVALID_ARGUMENT, 1}, {REFUSED, 1, 0, plain, INVALID_ARGUMENT, 0},
        {REFUSED, 0, 1, unread, INVALID_ARGUMENT, 0},
    };
    onnx_ops_python.refuse = answer_refusal, onnx_ops_python.interrupt = count_interrupt;
    for (size_t k = 0; k < COUNT(cases); k++) {
        outcome_of_refusal = cases[k].outcome, interrupt_count = 0, onnx_ops_wait_for_interrupt((int)cases[k].waits);
        status error = refuse(op, cases[k].is_unread ? &UNREAD : &name, &refusal, "b");
        if (GetErrorCode(error) != cases[k].code || interrupt_count != cases[k].interrupts)
            FINDING("refusal, case %zu: code %d, %ld interrupts", k, GetErrorCode(error), interrupt_count);
        expect(k, "refusal", error, cases[k].expected);
    }
    onnx_ops_wait_for_interrupt(0), connect_python();
    struct text longest = {"a", 1}; /* it ends with a whole character */
    for (int k = 0; k < 2000; k++) say_string(&longest, "\xE2\x82\xAC");
    if (longest.used != 4093 || strlen(longest.at) != longest.used) FINDING("a message of %zu bytes", longest.used);
}
static void check_plans(void) {
#define HAS_RAISED "compiled code has raised an exception; a call on arrays with ONNX_OPS_BOUNDSCHECK=1 names it"
#define NO_SHAPE "shape of an output = "
#define RULE ": is the result of the shape function, but no shape of at most 2**58 elements"
    static const int64_t large = (int64_t)1 << 40;
    static const struct {
        int64_t returned, rank, shape[2], workspace, has_bound;
        const char *expected;
    } cases[] = {
        {0, 2, {3, 4}, 0, 0, ""},
        {0, 0, {0}, large, 0, ""},
        {0, MAX_RANK, {0, 7}, 0, 1, ""},
        {0, 2, {1 << 29, 1 << 29}, 0, 0, ""},
        {0, 2, {1 << 29, (1 << 29) + 1}, 0, 0, "d.Op: " NO_SHAPE "[536870912, 536870913]" RULE},
        {0, 2, {0, ELEMENTS}, 0, 0, ""},
        {0, 2, {0, ELEMENTS + 1}, 0, 0, "d.Op: " NO_SHAPE "[0, 288230376151711745]" RULE},
        {0, 1, {-2}, 0, 0, "d.Op: " NO_SHAPE "[-2]" RULE},
        {0, -1, {0}, 0, 0, "d.Op: " NO_SHAPE "[]" RULE},
        {0, MAX_RANK + 1, {0}, 0, 0, "d.Op: " NO_SHAPE "[]" RULE},
        {0, 0, {0}, 0, 1, "d.Op: " NO_SHAPE "[]" RULE},
        {0, 1, {1}, -1, 0, "d.Op: workspace = -1: must be a number of bytes in [0, 2**40]"},
        {0, 1, {1}, large + 1, 0, "d.Op: workspace = 1099511627777: must be a number of bytes in [0, 2**40]"},
        {2, 1, {1}, 0, 0, "d.Op: " HAS_RAISED},
        {3, 1, {1}, 0, 0, "d.Op: compiled code has failed"},
    };
    static struct call call;
    shapes_function *plans[] = {plan_of_call};
    struct op op = {.domain = "d", .name = "Op", .plans = plans, .output_count = 1, .geometry_size = sizeof call.geometry};
    onnx_ops_python.refuse = 0;
    for (size_t k = 0; k < COUNT(cases); k++) {
        made_up.returned = cases[k].returned, made_up.rank = cases[k].rank, made_up.workspace = cases[k].workspace;
        memcpy(made_up.shape, cases[k].shape, sizeof made_up.shape), op.has_bound = cases[k].has_bound;
        expect(k, "plan", plan(&op, 0, 0, &call), cases[k].expected);
    }
    static const int64_t steps[][3] = {{5, 10, 1}, {5, 2 * TILE_ELEMENTS, 3}, {0, 1, 1}, {-3, 1, 1}, {2, 1 << 20, 2},
                                       {1 << 20, 1 << 20, MAX_TILES}}; /* steps, elements, tiles that are made of them */
    for (size_t k = 0; k < COUNT(steps); k++) {
        call.geometry.tiles = steps[k][0], call.tensors[MAX_INPUTS].size = steps[k][1];
        cut_steps(&op, &call);
        if (call.geometry.tiles != steps[k][2]) FINDING("steps, case %zu: %lld", k, (long long)call.geometry.tiles);
    }
    static const struct {
        int64_t tiles, workspace;
        long lost, failing; /* tiles; the number of a call that fails */
        const char *expected;
    } runs[] = {
        {0, 0, 0, 0, ""}, {-1, 64, 0, 0, ""}, {1, 100, 0, 0, ""}, {200, 1, 0, 0, ""}, {4, 0, 0, 0, ""},
        {4, 0, 0, 1, "injected into parallel_for"},
        {4, 0, 1, 0, "onnx_ops: ONNX Runtime has no room to run all tiles"},
        {5, 0, 0, 0, "d.Op: " HAS_RAISED},
        {3, (int64_t)1 << 36, 0, 0, "d.Op: workspace = 206158430208 bytes: can't be allocated"},
    };
    for (size_t k = 0; k < COUNT(runs); k++)
        for (pool = 1; pool <= 8; pool += 7) {
            call.geometry.tiles = runs[k].tiles, call.geometry.workspace = runs[k].workspace, lost_tiles = runs[k].lost;
            set_faults(CALL, runs[k].failing);
            expect(k, "run", run_tiles(&op, run_tile_of_call, &call, &call), runs[k].expected);
        }
    pool = 1, lost_tiles = 0, set_faults(CALL, 0);
    connect_python();
    check_inference(&op);
    check_refusals(&op);
    check_waiting(&op, &call);
}

static void check_file(const char *path, int with_faults) {
    static char content[MOST_BYTES];
    static struct node node;
    static struct life life;
    const struct custom_op *custom = read_node(path, content, &node);
    for (enum mode mode = AS_DESCRIBED; mode < MODES && custom; mode++) {
        set_mode(&node, mode);
        live(custom, &node, mode, &life), release_life(&life);
        const char *refusal = *life.refusals[0] ? life.refusals[0] : life.refusals[1];
        results[!*refusal]++;
        if (with_faults) check_faults(path, custom, &node, mode);
        else printf("%s, %s: %s\n", path, MODE_NAMES[mode], *refusal ? refusal : "computed");
    }
    release_node(&node);
}

/* A process that aborts writes its counters, too, where scripts/measure/coverage_figures.py has it count its branches. */
#ifdef ONNX_OPS_COUNTED
void __gcov_dump(void);
#else
static void __gcov_dump(void) {}
#endif
static void end(int number) { __gcov_dump(), signal(number, SIG_DFL), raise(number); }

int main(int count, char **words) {
    const char *command = count > 1 ? words[1] : "";
    signal(SIGABRT, end);
    if (!getenv("WITHOUT_PYTHON")) connect_python();
    onnx_ops_choose(); /* RegisterCustomOps reports its error */
    if (!strcmp(command, "registration")) check_registrations(count > 2 ? atol(words[2]) : 1);
    else if (!strcmp(command, "reshape")) check_reshape();
    else if (!strcmp(command, "plans")) take_api(&mock), check_plans();
    else {
        int is_default = !strcmp(command, "defaults"); /* then nothing states which operators there are to be */
        registered = is_default ? new_options() : options_for_all();
        if (is_default) set_faults(CALL, 1), expect(0, "registration", RegisterCustomOps(registered, &mock),
                                                    "injected into has_entry"), set_faults(CALL, 0);
        status error = is_default ? RegisterCustomOps(registered, &mock) : register_all(registered);
        if (error) {
            fprintf(stderr, "%s\n", message_of(error));
            return ReleaseStatus(error), release_options(registered), 2;
        }
        if (is_default || !strcmp(command, "operators")) list_operators();
        else if (!strcmp(command, "threads") && count > 3) check_threads((unsigned)atoi(words[2]), words + 3, count - 3);
        else
            for (int k = 2; k < count; k++) check_file(words[k], !strcmp(command, "faults"));
    }
    printf("%ld points; of the nodes, %ld were computed and %ld refused\n", points, results[1], results[0]);
    return has_findings;
}
