#pragma once
/* Messages of limited length, composed piece by piece: what does not fit is left out. */
#include "table.h"
#include <stddef.h>

struct text {
    char at[4096];
    size_t used;
};
void say(struct text *text, const char *bytes, size_t length);
void say_string(struct text *text, const char *string);
void say_number(struct text *text, int64_t number);
int is_text(const char *bytes, size_t length);
void say_quoted(struct text *text, const char *bytes, size_t length);
struct text title_of(const struct op *op);
