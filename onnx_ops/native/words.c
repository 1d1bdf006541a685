/* What errors say. */
#include "words.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 400 }; /* characters of a value or name: errors.py says why */

void say(struct text *text, const char *words, size_t length) {
    size_t room = sizeof text->at - 1 - text->used;
    if (length > room) length = room;
    memcpy(text->at + text->used, words, length);
    text->at[text->used += length] = 0;
}

void say_words(struct text *text, const char *words) { say(text, words, strlen(words)); }

void say_number(struct text *text, int64_t number) {
    char digits[24];
    say(text, digits, (size_t)snprintf(digits, sizeof digits, "%lld", (long long)number));
}

/* The character that begins here, and how many bytes it has; of what is none, one byte and U+FFFD, or with `strict` 0.
 */
static size_t decode(const unsigned char *at, const unsigned char *end, uint32_t *character) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = *at < 0x80 ? 1 : *at >> 5 == 6 ? 2 : *at >> 4 == 14 ? 3 : *at >> 3 == 30 ? 4 : 0;
    uint32_t found = length == 1 ? *at : *at & (0x7F >> length);
    if (!length || (size_t)(end - at) < length) return *character = 0xFFFD, 1;
    for (size_t k = 1; k < length; k++) {
        if (at[k] >> 6 != 2) return *character = 0xFFFD, 1;
        found = found << 6 | (at[k] & 0x3F);
    }
    if (found < least[length] || found > 0x10FFFF || found >> 11 == 27) return *character = 0xFFFD, 1;
    return *character = found, length;
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

/* Characters that are shown by their number. errors.py has the same list. */
static int is_hidden(uint32_t c) {
    static const uint32_t ranges[][2] = {{0, 0x1F},        {0x7F, 0xA0},       {0xAD, 0xAD},     {0x200B, 0x200F},
                                         {0x2028, 0x202E}, {0x2060, 0x206F},   {0xD800, 0xF8FF}, {0xFEFF, 0xFEFF},
                                         {0xFFF0, 0xFFFB}, {0xE0000, 0x10FFFF}};
    for (size_t k = 0; k < COUNT(ranges); k++)
        if (ranges[k][0] <= c && c <= ranges[k][1]) return 1;
    return 0;
}

/* A string as errors.quoted shows it, cut as errors.shown cuts it. */
void say_quoted(struct text *text, const char *bytes, size_t length) {
    const unsigned char *at = (const unsigned char *)bytes, *end = at + length;
    char quote = memchr(bytes, '\'', length) && !memchr(bytes, '"', length) ? '"' : '\'',
         *full = malloc(10 * length + 3), *to = full;
    if (!full) return say_words(text, "(too long)");
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
    size_t characters = 0, head = (size_t)(to - full),
           tail = 0; /* bytes shown of the beginning, and left out before the end */
    for (char *c = full; c < to; c++) characters += (*c & 0xC0) != 0x80;
    if (characters > SHOWN) {
        size_t seen = 0, cut = characters - SHOWN / 4, backslashes = 0;
        for (char *c = full; c < to; c++) {
            if ((*c & 0xC0) == 0x80) continue;
            if (seen == SHOWN / 2) head = (size_t)(c - full);
            if (seen == cut) {
                for (char *b = c; b > full && b[-1] == '\\'; b--) backslashes++;
                tail = (size_t)(c - full) + backslashes % 2;
            }
            seen++;
        }
    }
    say(text, full, head);
    if (tail) say_words(text, " ... "), say(text, full + tail, (size_t)(to - full) - tail);
    free(full);
}

void say_title(struct text *text, const struct op *op) {
    if (*op->domain) say_words(text, op->domain), say_words(text, ".");
    say_words(text, op->name);
}

/* Words with each {name} replaced by the operator's own term for it. */
static void say_spelled(struct text *text, const struct op *op, const char *words) {
    for (const char *open, *close; (open = strchr(words, '{')) && (close = strchr(open, '}')); words = close + 1) {
        size_t length = (size_t)(close - open) - 1;
        const char *term = 0;
        for (int64_t k = 0; k < op->term_count; k++)
            if (strlen(op->terms[2 * k]) == length && !memcmp(op->terms[2 * k], open + 1, length))
                term = op->terms[2 * k + 1];
        say(text, words, (size_t)(open - words));
        if (term) say_words(text, term);
        else say(text, open + 1, length);
    }
    say_words(text, words);
}

void say_vector(struct text *text, const int64_t *values, int64_t count) {
    char *full = malloc((size_t)count * 22 + 3), *to = full;
    if (!full) return say_words(text, "(too long)");
    *to++ = '[';
    for (int64_t k = 0; k < count; k++) to += sprintf(to, k ? ", %lld" : "%lld", (long long)values[k]);
    *to++ = ']';
    size_t length = (size_t)(to - full), head = length > SHOWN ? SHOWN / 2 : length;
    say(text, full, head);
    if (head < length) say_words(text, " ... "), say(text, to - SHOWN / 4, SHOWN / 4);
    free(full);
}

void say_refusal(struct text *text, const struct op *op, const struct refusal *refusal) {
    say_spelled(text, op, refusal->argument);
    say_words(text, " = ");
    if (refusal->count < 0) say_number(text, *refusal->values);
    else say_vector(text, refusal->values, refusal->count);
    say_words(text, ": ");
    say_spelled(text, op, refusal->rule);
    if (refusal->has_expected) say_words(text, " "), say_number(text, refusal->expected);
}

status refused(const struct text *text) { return CreateStatus(INVALID_ARGUMENT, text->at); }
status failed(const char *words) { return CreateStatus(FAIL, words); }
