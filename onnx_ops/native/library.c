/* The operators as ONNX Runtime custom ops: what ONNX Runtime loads, and all that knows its C interface.
 *
 * ONNX Runtime calls RegisterCustomOps with a session's options, create_kernel for every node, compute at every run.
 * What these do with a node, the table of operators says (table.h). A function that is missing there is Python's to
 * compile, if Python runs here (python.c); so are the tensors of strings, of which compiled code knows nothing.
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
static size_t output_count(const struct custom_op *custom) { return (void)custom, 1; }
static int output_type(const struct custom_op *custom, size_t output) {
    return (void)output, (int)custom->overload->types[MAX_INPUTS];
}
static int first_version(const struct custom_op *custom) { return (int)custom->op->first_version; }
static int last_version(const struct custom_op *custom) { return (void)custom, INT_MAX; }
static int required(void) { return 0; } /* of inputs and outputs: not optional, not variadic, in ordinary memory */
static int one(void) { return 1; } /* of what would be variadic: its least number, and that its types are the same */

static void *const FUNCTIONS[25] = {
    /* of an OrtCustomOp, in the order of the header's struct */
    0,   name, provider,      input_type, input_count, output_type,   output_count,
    0,   free, required,      required,   required,    one,           one,
    one, one,  create_kernel, compute,    infer,       first_version, last_version,
};
static struct {
    const char *name;
    void *made;
} domains[16];

static status make_domain(const char *name, void **domain) {
    status wrong = CreateCustomOpDomain(name, domain);
    if (wrong) return wrong;
    for (int64_t k = 0; k < onnx_ops_table.operator_count && !wrong; k++) {
        struct op *op = &onnx_ops_table.operators[k];
        for (int64_t o = 0; o < op->overload_count && !wrong && !strcmp(op->domain, name); o++) {
            if (is_of_strings(&op->overloads[o]) && !knows_strings()) continue;
            struct custom_op *custom = malloc(sizeof *custom);
            if (custom) {
                custom->version = OLDEST, custom->op = op, custom->overload = &op->overloads[o];
                memcpy(custom->functions, FUNCTIONS, sizeof FUNCTIONS);
            }
            wrong = custom ? CustomOpDomain_Add(*domain, custom) : failed("onnx_ops: no room for an operator");
        }
    }
    if (wrong) ReleaseCustomOpDomain(*domain);
    return wrong;
}

/* The domain of this name, made once and never released. */
static status find_domain(const char *name, void **domain) {
    size_t k = 0;
    while (k < COUNT(domains) && domains[k].made && strcmp(domains[k].name, name)) k++;
    if (k == COUNT(domains)) return failed("onnx_ops: too many domains");
    if (!domains[k].made) {
        status wrong = make_domain(name, domain);
        if (wrong) return wrong;
        domains[k].name = name, domains[k].made = *domain;
    }
    *domain = domains[k].made;
    return 0;
}

static status has_entry(const void *options, const char *what, const char *domain, char key[256], int *has) {
    snprintf(key, 256, "onnx_ops.%s.%s", what, *domain ? domain : "ai.onnx");
    return HasSessionConfigEntry(options, key, has);
}

/* Whether this is the first operator of its domain. */
static int begins_domain(int64_t k) {
    for (int64_t before = 0; before < k; before++)
        if (!strcmp(onnx_ops_table.operators[before].domain, onnx_ops_table.operators[k].domain)) return 0;
    return 1;
}

/* Put on the options what their entries onnx_ops.register.DOMAIN name or, without any, all domains but com.microsoft,
 * which as a custom domain breaks models that ONNX Runtime fuses nodes of into it. Those that they have already stay.
 */
static status register_domains(void *options) {
    char key[256];
    int any = 0, wanted, has;
    status wrong = 0;
    void *domain;
    for (int64_t k = 0; k < onnx_ops_table.operator_count && !wrong; k++) {
        wrong = has_entry(options, "register", onnx_ops_table.operators[k].domain, key, &has);
        any = any || has;
    }
    for (int64_t k = 0; k < onnx_ops_table.operator_count && !wrong; k++) {
        const char *name = onnx_ops_table.operators[k].domain;
        if (!begins_domain(k)) continue;
        if ((wrong = has_entry(options, "register", name, key, &wanted))) break;
        if ((wrong = has_entry(options, "registered", name, key, &has))) break;
        if (has || !(any ? wanted : strcmp(name, "com.microsoft"))) continue;
        if (!(wrong = find_domain(name, &domain)) && !(wrong = AddCustomOpDomain(options, domain)))
            wrong = AddSessionConfigEntry(options, key, "1");
    }
    return wrong;
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
    if (!lack && !onnx_ops_table.operator_count)
        lack = "onnx_ops must be imported in this process, and its get_library_path() called, before the library is "
               "registered: its operators are compiled by Python";
    status wrong = lack ? failed(lack) : register_domains(options);
    atomic_flag_clear(&busy);
    return wrong;
}
