/* The messages of errors. */
#include "text.h"
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 400 }; /* characters of a value or name that are shown: errors.py says why */

void say(struct text *text, const char *bytes, size_t length) {
    size_t room = sizeof text->at - 1 - text->used;
    if (length > room) length = room;
    memcpy(text->at + text->used, bytes, length);
    text->at[text->used += length] = 0;
}

void say_string(struct text *text, const char *string) { say(text, string, strlen(string)); }

/* Decode the UTF-8 character at `at`; returns its number of bytes. A byte that begins no character gives U+FFFD. */
static size_t decode(const unsigned char *at, const unsigned char *end, uint32_t *character) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = *at < 0x80 ? 1 : *at >> 5 == 6 ? 2 : *at >> 4 == 14 ? 3 : *at >> 3 == 30 ? 4 : 0;
    uint32_t value = length == 1 ? *at : *at & (0x7F >> length);
    if (!length || (size_t)(end - at) < length) return *character = 0xFFFD, 1;
    for (size_t k = 1; k < length; k++) {
        if (at[k] >> 6 != 2) return *character = 0xFFFD, 1;
        value = value << 6 | (at[k] & 0x3F);
    }
    if (value < least[length] || value > 0x10FFFF || value >> 11 == 27) return *character = 0xFFFD, 1;
    return *character = value, length;
}

int is_text(const char *bytes, size_t length) {
    const unsigned char *at = (const unsigned char *)bytes, *end = at + length;
    for (uint32_t character; at < end;) {
        size_t step = decode(at, end, &character);
        if (step == 1 && *at >= 0x80) return 0;
        at += step;
    }
    return 1;
}

/* Whether a character is shown by its number. errors.py has the same list. */
static int is_hidden(uint32_t c) {
    static const uint32_t ranges[][2] = {{0, 0x1F},        {0x7F, 0xA0},       {0xAD, 0xAD},     {0x200B, 0x200F},
                                         {0x2028, 0x202E}, {0x2060, 0x206F},   {0xD800, 0xF8FF}, {0xFEFF, 0xFEFF},
                                         {0xFFF0, 0xFFFB}, {0xE0000, 0x10FFFF}};
    for (size_t k = 0; k < COUNT(ranges); k++)
        if (ranges[k][0] <= c && c <= ranges[k][1]) return 1;
    return 0;
}

static int begins_character(char byte) { return (byte & 0xC0) != 0x80; }

/* Say what is in [full, end), cut as errors.shortened cuts it, and free it. */
static void say_cut(struct text *text, char *full, char *end) {
    size_t characters = 0;
    char *head_end = end, *tail = end;
    for (char *c = full; c < end; c++) characters += (size_t)begins_character(*c);
    if (characters > SHOWN) {
        head_end = full;
        for (int n = 0; n < SHOWN / 2; n += begins_character(*head_end)) head_end++;
        for (int n = 0; n < SHOWN / 4; n += begins_character(*tail)) tail--;
        char *escape = tail; /* a character behind an odd number of backslashes belongs to the last one */
        while (escape[-1] == '\\') escape--;
        tail += (tail - escape) % 2;
    }
    say(text, full, (size_t)(head_end - full));
    if (head_end < end) say_string(text, " ... "), say(text, tail, (size_t)(end - tail));
    free(full);
}

/* Say a string as errors.quoted shows it. */
void say_quoted(struct text *text, const char *bytes, size_t length) {
    const unsigned char *at = (const unsigned char *)bytes, *end = at + length;
    char quote = memchr(bytes, '\'', length) && !memchr(bytes, '"', length) ? '"' : '\'',
         *full = malloc(10 * length + 3), *to = full;
    if (!full) return say_string(text, "(too long)");
    *to++ = quote;
    for (uint32_t c; at < end;) {
        size_t step = decode(at, end, &c);
        if (c == '\\' || c == (uint32_t)quote) *to++ = '\\', *to++ = (char)c;
        else if (c == '\n' || c == '\r' || c == '\t') *to++ = '\\', *to++ = c == '\n' ? 'n' : c == '\r' ? 'r' : 't';
        else if (is_hidden(c))
            to += sprintf(to, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        else if (c == 0xFFFD) memcpy(to, "\xEF\xBF\xBD", 3), to += 3;
        else memcpy(to, at, step), to += step;
        at += step;
    }
    *to++ = quote;
    say_cut(text, full, to);
}

/* A text that begins with the operator's name. */
struct text title_of(const struct op *op) {
    struct text text = {"", 0};
    if (*op->domain) say_string(&text, op->domain), say_string(&text, ".");
    say_string(&text, op->name);
    return text;
}

/* Say a string in which each {name} is replaced by the operator's own term for it. */
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

/* Write a double as Python does: with the fewest digits that identify it, and with an exponent where Python has one. */
static char *write_double(char *to, double value) {
    char digits[32];
    int count = 0, exponent, point;
    if (value != value) return strcpy(to, "nan") + 3;
    if (value < 0 || (value == 0 && 1 / value < 0)) *to++ = '-', value = -value;
    if (value > DBL_MAX) return strcpy(to, "inf") + 3;
    do snprintf(digits, sizeof digits, "%.*e", count++, value);
    while (count < 17 && strtod(digits, 0) != value);
    char *end = strchr(digits, 'e');
    exponent = atoi(end + 1);
    memmove(digits + 1, end - (count - 1), (size_t)count - 1); /* overwrite the decimal point, which may be a comma */
    int fixed = -4 <= exponent && exponent < 16;
    point = fixed ? exponent + 1 : 1;
    if (point <= 0) *to++ = '0', *to++ = '.';
    for (int k = point; k < 0; k++) *to++ = '0';
    for (int k = 0; k < count || (fixed && k <= point); k++) {
        if (k && k == point) *to++ = '.';
        *to++ = k < count ? digits[k] : '0';
    }
    return fixed ? to : to + sprintf(to, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
}

static char *write_value(char *to, int64_t value, int64_t is_double) {
    double number;
    if (!is_double) return to + sprintf(to, "%lld", (long long)value);
    memcpy(&number, &value, sizeof number);
    return write_double(to, number);
}

static void say_value(struct text *text, int64_t value, int64_t is_double) {
    char digits[40];
    say(text, digits, (size_t)(write_value(digits, value, is_double) - digits));
}

void say_number(struct text *text, int64_t number) { say_value(text, number, 0); }

void say_vector(struct text *text, const int64_t *values, int64_t count, int64_t doubles) {
    char *full = malloc((size_t)count * 28 + 3), *to = full;
    if (!full) return say_string(text, "(too long)");
    *to++ = '[';
    for (int64_t k = 0; k < count; k++) {
        if (k) *to++ = ',', *to++ = ' ';
        to = write_value(to, values[k], doubles);
    }
    *to++ = ']';
    say_cut(text, full, to);
}

void say_refusal(struct text *text, const struct op *op, const struct refusal *refusal) {
    say_with_terms(text, op, refusal->argument);
    say_string(text, " = ");
    if (refusal->count < 0) say_value(text, *refusal->values, refusal->doubles & 1);
    else say_vector(text, refusal->values, refusal->count, refusal->doubles & 1);
    say_string(text, ": ");
    say_with_terms(text, op, refusal->rule);
    if (refusal->has_expected) say_string(text, " "), say_value(text, refusal->expected, refusal->doubles & 2);
}
