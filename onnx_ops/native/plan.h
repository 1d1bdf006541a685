#pragma once
/* Plans: the shapes of a node's outputs, and the tiles of its computation. */
#include "python.h"

int64_t combination(const struct op *op, const struct call *call);
void cut_steps(const struct op *op, struct call *call);
status infer_shapes(const struct op *op, const struct name *node, struct call *call);
status plan(const struct op *op, const struct name *node, int64_t combination, struct call *call);
