/* The messages of errors. */
#include "text.h"
#include <stdio.h>
#include <string.h>

/* Append bytes. What is left out begins with a character, so that a message of UTF-8 stays one. */
void say(struct text *text, const char *bytes, size_t length) {
    size_t room = sizeof text->at - 1 - text->used;
    if (length > room)
        for (length = room; length && (bytes[length] & 0xC0) == 0x80;) length--;
    memcpy(text->at + text->used, bytes, length);
    text->at[text->used += length] = 0;
}

void say_string(struct text *text, const char *string) { say(text, string, strlen(string)); }

void say_number(struct text *text, int64_t number) {
    char digits[24];
    say(text, digits, (size_t)snprintf(digits, sizeof digits, "%lld", (long long)number));
}

/* Append the beginning of a model's string in quotes. Bytes other than printable ASCII are shown by their numbers, since
 * they may be no UTF-8, or change how a terminal shows the rest; so are those that would end the quotes. */
void say_quoted(struct text *text, const char *bytes, size_t length) {
    enum { SHOWN = 200 };
    char shown[8];
    say_string(text, "'");
    for (size_t k = 0; k < length && k < SHOWN; k++) {
        int is_printable = ' ' <= bytes[k] && bytes[k] <= '~' && bytes[k] != '\'' && bytes[k] != '\\';
        snprintf(shown, sizeof shown, is_printable ? "%c" : "\\x%02x", (unsigned char)bytes[k]);
        say_string(text, shown);
    }
    say_string(text, length > SHOWN ? "...'" : "'");
}

/* Whether bytes are UTF-8. */
int is_text(const char *bytes, size_t length) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *at = (const unsigned char *)bytes, *end = at + length;
    while (at < end) {
        size_t size = *at < 0x80 ? 1 : *at >> 5 == 6 ? 2 : *at >> 4 == 14 ? 3 : *at >> 3 == 30 ? 4 : 0;
        if (!size || (size_t)(end - at) < size) return 0;
        uint32_t value = size == 1 ? *at : *at & (0x7F >> size);
        for (size_t k = 1; k < size; k++) {
            if (at[k] >> 6 != 2) return 0;
            value = value << 6 | (at[k] & 0x3F);
        }
        if (value < least[size] || value > 0x10FFFF || value >> 11 == 27) return 0;
        at += size;
    }
    return 1;
}

/* A text that begins with the operator's name. */
struct text title_of(const struct op *op) {
    struct text text = {"", 0};
    if (*op->domain) say_string(&text, op->domain), say_string(&text, ".");
    say_string(&text, op->name);
    return text;
}
