"""Col2Im from the image's side: every output row (along the last axis) is written once, by whoever owns its tile.

For an output row with pixels p_0 .. p_{d-2}, the block positions k_0 .. k_{d-2} that can land on it are those with
l_i = (p_i + pads_i - k_i * dilations_i) / strides_i a whole number inside [0, counts_i). Each of them adds, for every
k_{d-1}, one contiguous run of blocks to every strides_{d-1}-th pixel of the row. A row longer than SEGMENT is cut.
"""

import numpy as np

from .jit import jitable

SEGMENT = 8192  # pixels; a part of a row that stays in the first-level cache while it is added to


@jitable
def col2im(x, g, tile, out):
    last = g.axes - 1
    width, k_last, counts_last = g.image[last], g.block[last], g.counts[last]
    stride, dilation, pad = g.strides[last], g.dilations[last], g.pads[last]
    k_lead = blocks_lead = 1
    for i in range(last):
        k_lead *= g.block[i]
        blocks_lead *= g.counts[i]
    blocks = blocks_lead * counts_last
    units = g.rows * g.segments
    p = np.empty(16, np.int64)

    # Units are divided without forming units * tile, which could overflow.
    share, more = units // g.tiles, units % g.tiles
    first_unit = share * tile + min(tile, more)
    for unit in range(first_unit, first_unit + share + (1 if tile < more else 0)):
        row, begin = unit // g.segments, unit % g.segments * g.segment
        end = min(begin + g.segment, width)
        target = out[row * width + begin : row * width + end]
        target[:] = 0

        plane = row
        for i in range(last - 1, -1, -1):
            p[i] = plane % g.image[i]
            plane //= g.image[i]
        for k in range(k_lead):
            l, scale, rest = 0, 1, k
            inside = True
            for i in range(last - 1, -1, -1):
                t = p[i] + g.pads[i] - rest % g.block[i] * g.dilations[i]
                rest //= g.block[i]
                if t < 0 or t % g.strides[i] != 0 or t // g.strides[i] >= g.counts[i]:
                    inside = False
                    break
                l += t // g.strides[i] * scale
                scale *= g.counts[i]
            if not inside:
                continue
            source = ((plane * k_lead + k) * k_last) * blocks + l * counts_last
            for j in range(k_last):
                # Block b of this run lands on pixel b * stride + shift of the segment.
                shift = j * dilation - pad - begin
                low = max(0, -(shift // stride))
                high = min(counts_last, (end - begin - 1 - shift) // stride + 1)
                if low < high:
                    add(x[source + low : source + high], stride, target[low * stride + shift :])
                source += blocks


@jitable
def add(source, stride, target):
    """target[b * stride] += source[b]"""
    if stride == 1:
        for b in range(source.size):
            target[b] += source[b]
    else:
        for b in range(source.size):
            target[b * stride] += source[b]
