#pragma once
/* The record of a call: the inputs of a node, and the errors about what it holds. */
#include "refusal.h"

extern const unsigned char item_size[TYPES]; /* by element type; 0 for strings and unknown types */
int64_t elements(const int64_t *shape, int64_t rank);
const struct input *input_of(const struct op *op, size_t k);
status put_tensor(const struct op *op, const struct name *node, size_t k, void *value, struct call *call);
void put_absent(size_t k, struct call *call);
void put_count(const struct op *op, size_t count, struct call *call);
