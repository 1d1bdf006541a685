"""What a Pad adds to an image."""

from .indices import attributes_of, integer_list, pads_with_zeros, shape


def image_pads(graph, pad, axes):
    """Return what a Pad adds to the image's axes: all begins, then all ends; None if Im2Col can't do the same."""
    lists = [integer_list(graph, name) if name else None for name in (*pad.input[1:], "", "", "")]
    pads, padded_axes, rank = lists[0], lists[2], len(shape(graph, pad.output[0]))
    if pads is None or attributes_of(pad).get("mode", b"constant") != b"constant":
        return None
    if not pads_with_zeros(graph, pad):
        return None
    if len(pad.input) > 3 and pad.input[3]:
        if padded_axes is None or len(pads) != 2 * len(padded_axes):
            return None
        all_pads = [0] * 2 * rank
        for axis, begin, end in zip(padded_axes, pads, pads[len(padded_axes) :], strict=False):
            all_pads[axis % rank], all_pads[rank + axis % rank] = begin, end
        pads = all_pads
    before = rank - axes
    if (
        len(pads) != 2 * rank
        or any(pads[:before])
        or any(pads[rank : rank + before])
        or min(pads) < 0
    ):
        return None
    return [*pads[before:rank], *pads[rank + before :]]
