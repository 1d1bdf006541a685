#pragma once
/* The attributes of a node: their values, as compiled code and Python read them. */
#include "call.h"

struct values; /* a block that is being filled */
typedef status read_function(const struct attribute *, const char *name, const void *source, int64_t k, struct values *,
                             int *outcome);
read_function read_from_node, read_from_inference;
status read_attributes(const struct op *op, const struct name *node, read_function *read, const void *source,
                       struct block **block);
