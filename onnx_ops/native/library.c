/* The operators as ONNX Runtime custom ops: what ONNX Runtime loads, and all that knows its C interface.
 *
 * ONNX Runtime calls RegisterCustomOps with a session's options, create_kernel for every node, compute at every run.
 * What these do with a node, the table of operators says (table.h). A function that is missing there is Python's to
 * compile, if Python runs here (python.c); so are bodies that Python runs itself.
 *
 * ONNX Runtime keeps pointers to all of this until its last session is gone: nothing is ever freed but kernels' state.
 */
#include "library.h"
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *const *api;
unsigned api_version;
EXPORT struct table onnx_ops_table;
EXPORT const char *onnx_ops_cpu; /* that its functions are for, 0 where Python compiles them */

static const char *name(const struct custom_op *custom) { return custom->op->name; }
static const char *provider(const struct custom_op *custom) { return (void)custom, "CPUExecutionProvider"; }
static size_t input_count(const struct custom_op *custom) { return (size_t)custom->op->input_count; }
static int input_type(const struct custom_op *custom, size_t input) { return (int)custom->overload->types[input]; }
static size_t output_count(const struct custom_op *custom) { return (size_t)custom->op->output_count; }
static int output_type(const struct custom_op *custom, size_t output) {
    return (int)custom->overload->types[MAX_INPUTS + output];
}
static int presence(const struct custom_op *custom, size_t input) { return (int)custom->op->inputs[input].presence; }
static int first_version(const struct custom_op *custom) { return (int)custom->op->first_version; }
static int last_version(const struct custom_op *custom) { return (void)custom, INT_MAX; }
static int required(void) { return 0; } /* of outputs: neither optional nor variadic; of inputs: in ordinary memory */
static int one(void) { return 1; }      /* of what is variadic: its least number, and that its types are the same */

enum { INFER_OF_FUNCTIONS = 18, FIRST_WITH_ABSENT_INPUTS = 21 };
static void *const FUNCTIONS[25] = {
    /* of an OrtCustomOp, in the order of the header's struct */
    0,   name, provider,      input_type, input_count, output_type,   output_count,
    0,   free, presence,      required,   required,    one,           one,
    one, one,  create_kernel, compute,    infer,       first_version, last_version,
};

/* What ONNX Runtime knows the overloads of an operator by: made once. */
static struct custom_op *find_customs(struct op *op) {
    struct custom_op *customs = op->customs;
    int has_optional = 0;
    if (customs || !(customs = malloc((size_t)op->overload_count * sizeof *customs))) return customs;
    for (int64_t k = 0; k < op->input_count; k++) has_optional = has_optional || op->inputs[k].presence == OPTIONAL;
    for (int64_t o = 0; o < op->overload_count; o++) {
        customs[o].version = OLDEST, customs[o].op = op, customs[o].overload = &op->overloads[o];
        memcpy(customs[o].functions, FUNCTIONS, sizeof FUNCTIONS);
        /* it would crash there, where a node leaves an optional input out */
        if (has_optional && api_version < FIRST_WITH_ABSENT_INPUTS) customs[o].functions[INFER_OF_FUNCTIONS] = 0;
    }
    return op->customs = customs;
}

/* One domain of one session's options, whose address these keep in an entry, and its operators. */
struct domain {
    void *made;
    size_t count;
    struct op **ops;
};

static status has_entry(const void *options, const char *what, const char *domain, char key[256], int *has) {
    snprintf(key, 256, "onnx_ops.%s.%s", what, *domain ? domain : "ai.onnx");
    return HasSessionConfigEntry(options, key, has);
}

static status find_domain(void *options, const char *name, struct domain **domain) {
    char key[256], address[32] = "";
    size_t size = sizeof address;
    int has;
    void *found = 0;
    status wrong = has_entry(options, "registered", name, key, &has);
    if (wrong) return wrong;
    if (has) {
        if ((wrong = GetSessionConfigEntry(options, key, address, &size))) return wrong;
        sscanf(address, "%p", &found);
        return *domain = found, found ? 0 : failed("onnx_ops: an entry of the options isn't what it was");
    }
    struct domain *made = calloc(1, sizeof *made);
    if (!made) return failed("onnx_ops: no room for a domain");
    snprintf(address, sizeof address, "%p", (void *)made);
    if ((wrong = CreateCustomOpDomain(name, &made->made))) return free(made), wrong;
    if ((wrong = AddCustomOpDomain(options, made->made))) return ReleaseCustomOpDomain(made->made), free(made), wrong;
    return *domain = made, AddSessionConfigEntry(options, key, address);
}

/* Put an operator on the options, unless it is there. */
static status add_operator(void *options, struct op *op) {
    struct domain *domain = 0;
    struct custom_op *customs;
    status wrong = find_domain(options, op->domain, &domain);
    if (wrong) return wrong;
    for (size_t k = 0; k < domain->count; k++) {
        if (domain->ops[k] == op) return 0;
        if (!strcmp(domain->ops[k]->name, op->name)) {
            struct text text = {"", 0};
            say_title(&text, op);
            say_words(&text, ": the session's options have another operator of this name; use new options");
            return refused(&text);
        }
    }
    struct op **ops = realloc(domain->ops, (domain->count + 1) * sizeof *ops);
    if (ops) domain->ops = ops;
    if (!ops || !(customs = find_customs(op))) return failed("onnx_ops: no room for an operator");
    for (int64_t o = 0; o < op->overload_count && !wrong; o++)
        if (!is_of_strings(&op->overloads[o]) || knows_strings()) wrong = CustomOpDomain_Add(domain->made, &customs[o]);
    if (!wrong) domain->ops[domain->count++] = op;
    return wrong;
}

static OF_THREAD struct op *const *own; /* operators of one's own that this thread's next registration adds */
static OF_THREAD size_t own_count;

EXPORT void onnx_ops_add(struct op *const *ops, size_t count) { own = ops, own_count = count; }

/* Put on the options what their entries onnx_ops.register.DOMAIN name or, without any, all domains but com.microsoft,
 * which as a custom domain breaks models that ONNX Runtime fuses nodes of into it. Those that they have already stay.
 */
static status register_operators(void *options) {
    char key[256];
    int any = 0, wanted;
    status wrong = 0;
    for (int64_t k = 0; k < onnx_ops_table.operator_count && !wrong && !any; k++)
        wrong = has_entry(options, "register", onnx_ops_table.operators[k].domain, key, &any);
    for (int64_t k = 0; k < onnx_ops_table.operator_count && !wrong; k++) {
        struct op *op = &onnx_ops_table.operators[k];
        wrong = has_entry(options, "register", op->domain, key, &wanted);
        if (!wrong && (any ? wanted : strcmp(op->domain, "com.microsoft"))) wrong = add_operator(options, op);
    }
    for (size_t k = 0; k < own_count && !wrong; k++) wrong = add_operator(options, own[k]);
    return own_count = 0, wrong;
}

#ifdef ONNX_OPS_AHEAD
static int runs(const char *cpu) {
#ifdef __x86_64__
    __builtin_cpu_init();
    if (!strcmp(cpu, "x86-64-v4")) return __builtin_cpu_supports("x86-64-v4");
    if (!strcmp(cpu, "x86-64-v3")) return __builtin_cpu_supports("x86-64-v3") && __builtin_cpu_supports("f16c");
    if (!strcmp(cpu, "x86-64-v2")) return __builtin_cpu_supports("x86-64-v2");
#endif
    return !strcmp(cpu, "armv8-a");
}
#endif

/* Take the functions for the best CPU that this one is, or for that which the variable ONNX_OPS_CPU names. Returns why
 * there are none, or 0; there may be none until Python fills the table. */
EXPORT const char *onnx_ops_choose(void) {
#ifdef ONNX_OPS_AHEAD
    static char words[256];
    const char *wanted = getenv("ONNX_OPS_CPU");
    if (wanted && !*wanted) wanted = 0;
    for (const struct level *level = onnx_ops_levels; level->cpu && !onnx_ops_table.operator_count; level++)
        if ((!wanted || !strcmp(wanted, level->cpu)) && runs(level->cpu)) {
            onnx_ops_cpu = level->cpu;
            onnx_ops_table = level->table;
        }
    if (!onnx_ops_table.operator_count) {
        int used = snprintf(words, sizeof words,
                            wanted ? "ONNX_OPS_CPU = %.40s: can't be run here by this library, which has"
                                   : "CPU: can't run this library, which has",
                            wanted);
        for (const struct level *level = onnx_ops_levels; level->cpu && used < (int)sizeof words; level++)
            used += snprintf(words + used, sizeof words - (size_t)used, " %s", level->cpu);
        return words;
    }
#endif
    return 0;
}

EXPORT status RegisterCustomOps(void *options, const struct api_base *base) {
    static atomic_flag busy = ATOMIC_FLAG_INIT;
    const char *dot = strchr(base->get_version(), '.');
    unsigned version = dot ? (unsigned)strtoul(dot + 1, 0, 10) : 0; /* ONNX Runtime 1.x has those up to x */
    if (version > WITH_DATA_REFERENCE) version = WITH_DATA_REFERENCE;
    while (atomic_flag_test_and_set(&busy)) {}
    if (!api) api_version = version, api = base->get_api(version < OLDEST ? 1 : version);
    const char *lack = version < OLDEST ? "onnx_ops needs ONNX Runtime 1.17 or newer" : onnx_ops_choose();
    if (!lack && !onnx_ops_table.operator_count && !own_count)
        lack = "onnx_ops must be imported in this process, and its get_library_path() called, before the library is "
               "registered: its operators are compiled by Python";
    status wrong = lack ? failed(lack) : register_operators(options);
    atomic_flag_clear(&busy);
    return wrong;
}
