/* Errors about what an operator refuses, and answers of Python, which makes these errors where it runs.
 *
 * An interrupt such as Ctrl-C may raise an exception at any instruction of Python's, but none may cross a C callback.
 * Python's functions catch the exceptions that they can. ctypes drops those raised before their first line or after
 * their last. So an answer is UNFINISHED until Python sets another outcome. After an interrupt, `answered` reports no
 * error: Python raises the exception as soon as the call of ONNX Runtime returns. */
#include "refusal.h"
#include <stdio.h>
#include <string.h>

EXPORT struct python onnx_ops_python;
const struct name UNREAD;
static _Thread_local int waiting; /* an interrupt waits to be raised: until then, Python is not called */

EXPORT void onnx_ops_wait_for_interrupt(int wait) { waiting = wait; }

int is_waiting(void) { return waiting; }

/* The status for an answer, which is 0 after an interrupt, too. */
status answered(const struct answer *answer) {
    if (answer->outcome == UNFINISHED) onnx_ops_python.interrupt();
    if (answer->outcome == FAILED || answer->outcome == REFUSED)
        return new_status(answer->outcome == FAILED ? FAIL : INVALID_ARGUMENT, answer->message);
    return 0;
}

/* Append a string in which each {name} is replaced by the operator's own term for it. */
static void say_with_terms(struct text *text, const struct op *op, const char *string) {
    for (const char *open, *close; (open = strchr(string, '{')) && (close = strchr(open, '}')); string = close + 1) {
        size_t length = (size_t)(close - open) - 1;
        const char *term = 0;
        for (int64_t k = 0; k < op->term_count; k++)
            if (strlen(op->terms[2 * k]) == length && !memcmp(op->terms[2 * k], open + 1, length))
                term = op->terms[2 * k + 1];
        say(text, string, (size_t)(open - string));
        if (term) say_string(text, term);
        else say(text, open + 1, length);
    }
    say_string(text, string);
}

static void say_value(struct text *text, int64_t value, int64_t is_double) {
    char digits[32];
    double number;
    if (!is_double) return say_number(text, value);
    memcpy(&number, &value, sizeof number);
    snprintf(digits, sizeof digits, "%.9g", number);
    say_string(text, digits);
}

static void say_values(struct text *text, const struct refusal *refusal) {
    enum { SHOWN = 32 };
    const int64_t *values = refusal->values, count = refusal->count;
    if (refusal->kinds & OF_TEXT) return say_quoted(text, (const char *)values, (size_t)count);
    if (count < 0) return say_value(text, *values, refusal->kinds & OF_DOUBLES);
    say_string(text, "[");
    for (int64_t k = 0; k < count && k < SHOWN; k++) {
        if (k) say_string(text, ", ");
        say_value(text, values[k], refusal->kinds & OF_DOUBLES);
    }
    say_string(text, count > SHOWN ? ", ...]" : "]");
}

/* The message where Python doesn't run. */
struct text plain_refusal(const struct op *op, const struct name *node, const struct refusal *refusal, const char *note) {
    struct text text = title_of(op);
    if (node && node->size) say_string(&text, " (node "), say_quoted(&text, node->at, node->size), say_string(&text, ")");
    say_string(&text, ": ");
    if (refusal->argument) {
        say_with_terms(&text, op, refusal->argument), say_string(&text, " = ");
        if (refusal->values) say_values(&text, refusal);
        if (refusal->values && note) say_string(&text, " ");
        if (note) say_string(&text, note);
        say_string(&text, ": ");
    }
    say_with_terms(&text, op, refusal->rule);
    if (refusal->has_expected) say_string(&text, " "), say_value(&text, refusal->expected, refusal->kinds & OF_EXPECTED);
    return text;
}

/* The status for a refusal. node: its name, 0 at a run, as ONNX Runtime adds it, or UNREAD. note: what follows the
 * values in the message, or 0. */
status refuse(const struct op *op, const struct name *node, const struct refusal *refusal, const char *note) {
    struct answer answer = {UNFINISHED, ""};
    if (onnx_ops_python.refuse && node != &UNREAD && !waiting) {
        onnx_ops_python.refuse(op->number, node, refusal, note, &answer);
        status error = answered(&answer);
        if (error) return error;
    }
    struct text text = plain_refusal(op, node, refusal, note);
    return refused(&text);
}

/* The status for numbers that break a rule: so many of them, or a single one if the count is -1. expected: the number
 * with which the rule ends, or 0. */
status refuse_numbers(const struct op *op, const struct name *node, const char *argument, const int64_t *values,
                      int64_t count, const char *rule, const int64_t *expected) {
    struct refusal refusal = {.argument = argument, .rule = rule, .values = values, .count = count};
    if (expected) refusal.has_expected = 1, refusal.expected = *expected;
    return refuse(op, node, &refusal, 0);
}

/* The status for what compiled code has returned. */
status explained(const struct op *op, const struct name *node, const struct refusal *refusal, int64_t returned) {
    struct refusal failure = {.rule = "compiled code has failed"};
    if (!returned) return 0;
    if (returned == 2)
        failure.rule = "compiled code has raised an exception; a call on arrays with ONNX_OPS_BOUNDSCHECK=1 names it";
    return refuse(op, node, returned == 1 ? refusal : &failure, 0);
}
