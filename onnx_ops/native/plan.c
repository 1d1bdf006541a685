/* Plans: the shapes of a node's outputs, and the tiles of its computation. */
#include "plan.h"
#include <string.h>

/* Which combination of ranks the inputs have, of those for which kernels are compiled; -1 if none. */
int64_t combination(const struct op *op, const struct call *call) {
    int64_t index = 0;
    if (!op->combination_count || call->input_count > op->input_count) return -1;
    for (int64_t k = 0; k < op->input_count; k++) {
        const struct input *input = &op->inputs[k];
        if (!input->rank_count) continue;
        int64_t position = 0, rank = call->tensors[k].rank;
        if (input->wants_values && rank != ABSENT) rank = 1; /* in the call it is the number of values */
        while (position < input->rank_count && input->ranks[position] != rank) position++;
        if (position == input->rank_count) return -1;
        index = index * input->rank_count + position;
    }
    return index;
}

/* Refuse shapes that no tensor can have, and bytes that no call can; complete the others. */
static status check_plan(const struct op *op, const struct name *node, struct call *call) {
    for (int64_t k = 0; k < op->output_count; k++) {
        struct tensor *out = &call->tensors[MAX_INPUTS + k];
        int64_t most = ELEMENTS;
        int fits = op->has_bound <= out->rank && out->rank <= MAX_RANK;
        for (int64_t a = 0; a < out->rank && fits; a++) {
            fits = 0 <= out->shape[a] && out->shape[a] <= most;
            if (fits && out->shape[a]) most /= out->shape[a];
        }
        if (!fits)
            return refuse_numbers(op, node, "shape of an output", out->shape,
                                  out->rank < 0 || out->rank > MAX_RANK ? 0 : out->rank,
                                  "is the result of the shape function, but no shape of at most 2**58 elements", 0);
        out->size = elements(out->shape, out->rank);
    }
    const int64_t *bytes = &call->geometry.workspace;
    if (*bytes < 0 || *bytes > MAX_WORKSPACE)
        return refuse_numbers(op, node, "workspace", bytes, -1, "must be a number of bytes in [0, 2**40]", 0);
    return 0;
}

/* Make tiles of a loop's steps, for tensors of known sizes; Call.run in execute.py does the same. */
void cut_steps(const struct op *op, struct call *call) {
    int64_t most = 0;
    for (int64_t k = 0; k < op->input_count; k++) most += call->tensors[k].size;
    for (int64_t k = 0; k < op->output_count; k++) most += call->tensors[MAX_INPUTS + k].size;
    most = most / TILE_ELEMENTS + 1;
    if (most > MAX_TILES) most = MAX_TILES;
    int64_t *tiles = &call->geometry.tiles;
    if (*tiles > most) *tiles = most;
    if (*tiles < 1) *tiles = 1;
}

static void begin(const struct op *op, struct call *call) {
    memset(&call->geometry, 0, (size_t)op->geometry_size);
    for (int64_t k = 0; k < op->output_count; k++) call->tensors[MAX_INPUTS + k].rank = -1;
}

/* State the outputs' shapes as far as they follow from what is known of the inputs. The table must have op->infer. */
status infer_shapes(const struct op *op, const struct name *node, struct call *call) {
    begin(op, call);
    return explained(op, node, &call->geometry.refusal, op->infer(call));
}

/* Find the shapes of the outputs, and the number of tiles. The table must have the plan of the combination, if any. */
status plan(const struct op *op, const struct name *node, int64_t combination, struct call *call) {
    begin(op, call);
    status error = combination < 0 ? plan_in_python(op, node, call)
                                   : explained(op, node, &call->geometry.refusal, op->plans[combination](call));
    return error ? error : check_plan(op, node, call);
}
