/* Registration: the operators as custom ops of ONNX Runtime, which loads this library.
 *
 * ONNX Runtime calls RegisterCustomOps with a session's options, create_kernel for every node, compute at every run.
 * These use the table of operators (table.h). If this process runs Python, Python compiles functions that the table
 * lacks, and runs uncompiled bodies (python.c).
 *
 * ONNX Runtime keeps pointers to all of this until its last session is gone: only the state of kernels is ever freed.
 */
#include "library.h"
#include "machine.h"
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

EXPORT struct table onnx_ops_table;
EXPORT const char *onnx_ops_cpu; /* the CPU that the table's functions were compiled for; 0 if Python compiles them */

/* Sessions that this thread makes have none of the operators, even if their options do. */
static _Thread_local int is_leaving_out;

EXPORT void onnx_ops_leave_out(int begins) { is_leaving_out = begins; }

/* No node has the digest of a declaration as its op_type. */
static const char *name(const struct custom_op *custom) {
    return is_leaving_out ? custom->op->declaration : custom->op->name;
}
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
static int zero(void) { return 0; } /* outputs are neither optional nor variadic; inputs are in ordinary memory */
static int one(void) { return 1; }  /* a variadic input stands for at least one tensor, and all have the same type */

/* The functions of an OrtCustomOp, by their position in the header's struct. */
enum {
    GetName = 1,
    GetExecutionProviderType,
    GetInputType,
    GetInputTypeCount,
    GetOutputType,
    GetOutputTypeCount,
    KernelDestroy = 8,
    GetInputCharacteristic,
    GetOutputCharacteristic,
    GetInputMemoryType,
    GetVariadicInputMinArity,
    GetVariadicInputHomogeneity,
    GetVariadicOutputMinArity,
    GetVariadicOutputHomogeneity,
    CreateKernelV2,
    KernelComputeV2,
    InferOutputShapeFn,
    GetStartVersion,
    GetEndVersion,
};
enum { FIRST_WITH_ABSENT_INPUTS = 21 };
static void *const FUNCTIONS[FUNCTIONS_OF_CUSTOM_OP] = {
    [GetName] = name,
    [GetExecutionProviderType] = provider,
    [GetInputType] = input_type,
    [GetInputTypeCount] = input_count,
    [GetOutputType] = output_type,
    [GetOutputTypeCount] = output_count,
    [KernelDestroy] = free,
    [GetInputCharacteristic] = presence,
    [GetOutputCharacteristic] = zero,
    [GetInputMemoryType] = zero,
    [GetVariadicInputMinArity] = one,
    [GetVariadicInputHomogeneity] = one,
    [GetVariadicOutputMinArity] = one,
    [GetVariadicOutputHomogeneity] = one,
    [CreateKernelV2] = create_kernel,
    [KernelComputeV2] = compute,
    [InferOutputShapeFn] = infer,
    [GetStartVersion] = first_version,
    [GetEndVersion] = last_version,
};

/* The custom ops for the overloads of an operator, which are made once. */
static struct custom_op *find_customs(struct op *op) {
    struct custom_op *customs = op->customs;
    int has_optional = 0;
    if (customs || !(customs = malloc((size_t)op->overload_count * sizeof *customs))) return customs;
    for (int64_t k = 0; k < op->input_count; k++) has_optional = has_optional || op->inputs[k].presence == OPTIONAL;
    for (int64_t o = 0; o < op->overload_count; o++) {
        customs[o].version = OLDEST, customs[o].op = op, customs[o].overload = &op->overloads[o];
        memcpy(customs[o].functions, FUNCTIONS, sizeof FUNCTIONS);
        /* Older versions would crash in it if a node leaves an optional input out. */
        if (has_optional && api_version < FIRST_WITH_ABSENT_INPUTS) customs[o].functions[InferOutputShapeFn] = 0;
    }
    return op->customs = customs;
}

/* An operator in a domain, and how many of its custom ops ONNX Runtime has taken: after an error not all of them. */
struct member {
    struct op *op;
    int64_t added;
};
struct domain { /* a domain on a session's options, which an entry of the options names by its number */
    const char *name;
    void *ort_domain;
    const void *options; /* that have it; their copy by `get_session_options` has the entry, and no domain */
    size_t count;
    struct member *members;
};
static struct domain **domains; /* by number; all stay, since copies of the options have them */
static size_t domain_count;

static status has_entry(const void *options, const char *entry, const char *domain, char key[256], int *has) {
    snprintf(key, 256, "onnx_ops.%s.%s", entry, *domain ? domain : "ai.onnx");
    return HasSessionConfigEntry(options, key, has);
}

/* Find the domain that an entry of the options names. Whoever makes the options may have written it. */
static status read_entry(const void *options, const char *key, const char *name, struct domain **domain) {
    char entry[32] = "", *end;
    size_t size = sizeof entry;
    status error = GetSessionConfigEntry(options, key, entry, &size);
    if (error) return error;
    unsigned long long number = strtoull(entry, &end, 10);
    if (end == entry || *end || number >= domain_count || strcmp(domains[number]->name, name)) {
        struct text text = {"", 0};
        say_string(&text, key), say_string(&text, " = "), say_quoted(&text, entry, strlen(entry));
        say_string(&text, ": is an entry that only the library may write");
        return refused(&text);
    }
    return *domain = domains[number], NULL;
}

static int is_of_strings(const struct overload *overload) {
    for (size_t k = 0; k < MAX_INPUTS + MAX_OUTPUTS; k++)
        if (overload->types[k] == STRINGS) return 1;
    return 0;
}

/* Add an operator to a domain, unless it is there. */
static status add_member(struct domain *domain, struct op *op) {
    struct member *member = 0;
    struct custom_op *customs;
    status error;
    for (size_t k = 0; k < domain->count; k++) {
        struct member *other = &domain->members[k];
        if (other->op == op) member = other;
        else if (other->added && !strcmp(other->op->name, op->name)) {
            if (!op->is_custom) return 0; /* a user's operator replaces one of this package */
            struct text text = title_of(op);
            say_string(&text, ": the session's options have another operator of this name; use new options");
            return refused(&text);
        }
    }
    if (!member) {
        struct member *members = realloc(domain->members, (domain->count + 1) * sizeof *members);
        if (!members) return failed("onnx_ops: no room for an operator");
        domain->members = members, member = &members[domain->count++];
        *member = (struct member){op, 0};
    }
    if (!(customs = find_customs(op))) return failed("onnx_ops: no room for an operator");
    for (; member->added < op->overload_count; member->added++) {
        const struct overload *overload = &op->overloads[member->added];
        if (is_of_strings(overload) && !onnx_ops_python.run) continue;
        if ((error = CustomOpDomain_Add(domain->ort_domain, &customs[member->added]))) return error;
    }
    return 0;
}

/* Make a domain for the options, with the operators of `origin`, if any, and an entry that names it. */
static status new_domain(void *options, const char *key, const char *name, const struct domain *origin,
                         struct domain **domain) {
    char entry[32];
    status error;
    if (!(domain_count & (domain_count - 1))) { /* its room is the next power of two */
        struct domain **more = realloc(domains, (domain_count ? 2 * domain_count : 1) * sizeof *more);
        if (!more) return failed("onnx_ops: no room for a domain");
        domains = more;
    }
    struct domain *added = calloc(1, sizeof *added);
    if (!added) return failed("onnx_ops: no room for a domain");
    added->name = name;
    snprintf(entry, sizeof entry, "%zu", domain_count);
    if ((error = made(CreateCustomOpDomain(name, &added->ort_domain), &added->ort_domain))) return free(added), error;
    for (size_t k = 0; origin && k < origin->count && !error; k++) error = add_member(added, origin->members[k].op);
    if (error || (error = AddSessionConfigEntry(options, key, entry)))
        return ReleaseCustomOpDomain(added->ort_domain), free(added->members), free(added), error;
    return domains[domain_count++] = *domain = added, NULL;
}

/* Find a domain on the options, or add it. */
static status find_domain(void *options, const char *name, struct domain **domain) {
    char key[256];
    int has;
    status error = has_entry(options, "registered", name, key, &has);
    if (!error && has) error = read_entry(options, key, name, domain);
    const struct domain *origin = *domain;
    if (!error && (!has || (origin->options && origin->options != options)))
        error = new_domain(options, key, name, origin, domain);
    if (error || (*domain)->options) return error;
    error = AddCustomOpDomain(options, (*domain)->ort_domain);
    if (!error) (*domain)->options = options;
    return error;
}

/* Add an operator to the options, unless it is there. */
static status add_operator(void *options, struct op *op) {
    struct domain *domain = 0;
    status error = find_domain(options, op->domain, &domain);
    return error ? error : add_member(domain, op);
}

static _Thread_local struct op *const *added; /* operators that this thread's next registration adds */
static _Thread_local size_t added_count;

EXPORT void onnx_ops_add(struct op *const *ops, size_t count) { added = ops, added_count = count; }

/* Add operators to the options: those that Python has stated, and those of the domains in entries
 * onnx_ops.register.DOMAIN; without either, the operators with is_default. Registered operators stay. */
static status register_operators(void *options) {
    char key[256];
    int is_stated = added_count > 0, wanted;
    status error = 0;
    for (int64_t k = 0; k < onnx_ops_table.operator_count && !error && !is_stated; k++)
        error = has_entry(options, "register", onnx_ops_table.operators[k]->domain, key, &is_stated);
    for (int64_t k = 0; k < onnx_ops_table.operator_count && !error; k++) {
        struct op *op = onnx_ops_table.operators[k];
        error = has_entry(options, "register", op->domain, key, &wanted);
        if (!error && (is_stated ? wanted : op->is_default)) error = add_operator(options, op);
    }
    for (size_t k = 0; k < added_count && !error; k++) error = add_operator(options, added[k]);
    return added_count = 0, error;
}

/* Choose the functions for the newest CPU that this machine can run, or for the CPU that the variable ONNX_OPS_CPU
 * names. Returns why there are none, or 0, also if none were compiled ahead: then Python fills the table. */
EXPORT const char *onnx_ops_choose(void) {
#ifdef ONNX_OPS_AHEAD
    static struct text message;
    const char *wanted = getenv("ONNX_OPS_CPU");
    if (wanted && !*wanted) wanted = 0;
    for (const struct level *level = onnx_ops_levels; level->cpu && !onnx_ops_table.operator_count; level++)
        if ((!wanted || !strcmp(wanted, level->cpu)) && runs(level->cpu)) {
            onnx_ops_cpu = level->cpu;
            onnx_ops_table = level->table;
        }
    if (!onnx_ops_table.operator_count) {
        message.used = 0;
        say_string(&message, wanted ? "ONNX_OPS_CPU = " : "CPU: can't run");
        size_t length = wanted ? strlen(wanted) : 0;
        if (wanted) say(&message, wanted, length < 40 ? length : 40), say_string(&message, ": can't be run here by");
        say_string(&message, " this library, which has");
        for (const struct level *level = onnx_ops_levels; level->cpu; level++)
            say_string(&message, " "), say_string(&message, level->cpu);
        return message.at;
    }
#endif
    return 0;
}

EXPORT status RegisterCustomOps(void *options, const struct api_base *base) {
    static atomic_flag busy = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&busy)) {}
    const char *reason = take_api(base) ? onnx_ops_choose() : "onnx_ops needs ONNX Runtime 1.17 or newer";
    if (!reason && !stays()) reason = "onnx_ops: the library can't be kept in the process";
    if (!reason && !onnx_ops_table.operator_count && !added_count)
        reason = "onnx_ops must be imported in this process, and its get_library_path() called, before the library is "
                 "registered: its operators are compiled by Python";
    status error = reason ? failed(reason) : register_operators(options);
    atomic_flag_clear(&busy);
    return error;
}
