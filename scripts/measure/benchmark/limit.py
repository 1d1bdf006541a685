"""The limit: a plain pass that reads all bytes of the inputs and writes all bytes of the output,
each once.

It is an operator like the package's own and differs from them in its kernel alone: sessions,
threads and the size of tiles are the same. It adds up a tile's input words and fills its output
words with the sum, in ordinary vector instructions: no stores past the caches, no large pages, no
prefetching by hand. (It reads each tile in four places at once, which keeps more cache lines in
flight and is a fifth faster than one.) Its time therefore depends on the size of the data as the
kernels' time does: on whether they fit into the second-level cache, the third, or memory.
"""

import numpy as np
from onnx import TensorProto, helper
from support.cases import finished

import onnx_ops
from onnx_ops.declaration.attributes import Attribute
from onnx_ops.declaration.jit import jitable
from onnx_ops.declaration.operator import Input, Kernel, Operator, Output, Plan

DOMAIN = "benchmark"
WORDS_PER_TILE = 2**14  # of 8 bytes: those of 2**15 float32, as in Col2Im


@jitable
def shape(attributes, inputs, outputs):
    outputs[0][0] = attributes.size
    return 1


@jitable
def plan(attributes, inputs, outputs, g):
    g.tiles = min(64, (inputs[0][0] + inputs[1][0] + attributes.size) // WORDS_PER_TILE + 1)


@jitable
def read_and_write(x, y, g, tile, workspace, out):
    total = np.uint64(tile)
    for source in (x, y):
        words = source[source.size * tile // g.tiles : source.size * (tile + 1) // g.tiles]
        quarter = words.size // 4
        a, b, c, d = words[:quarter], words[quarter:], words[2 * quarter :], words[3 * quarter :]
        for w in range(quarter):
            total += (a[w] + b[w]) + (c[w] + d[w])
        for w in range(4 * quarter, words.size):
            total += words[w]
    target = out[out.size * tile // g.tiles : out.size * (tile + 1) // g.tiles]
    for w in range(target.size):
        target[w] = total


PASS = Operator(
    domain=DOMAIN,
    name="Pass",
    versions=(1,),
    ranks=(1,),
    inputs=(Input("x", "T"), Input("y", "T")),
    outputs=(Output("output", "T"),),
    types={"T": ("uint64",)},
    attributes=(Attribute("size", "int", required=True),),
    plan=Plan(shape, plan),
    kernels=(Kernel(read_and_write),),
    reference=lambda x, y, *, size: np.full(size, x.sum() + y.sum()),
)


def limit(tensors, out, options):
    """Return (session, its inputs, its output) that read all bytes of `tensors` and write as many
    as `out` has.
    """
    a, *tensors_after_the_first = map(as_words, tensors)
    b = np.concatenate(tensors_after_the_first or [a[:0]])
    y = np.empty(out.nbytes // 8, np.uint64)
    node = helper.make_node("Pass", ["a", "b"], ["y"], domain=DOMAIN, size=y.size)
    described = [helper.make_tensor_value_info(n, TensorProto.UINT64, [None]) for n in "aby"]
    proto = finished(helper.make_graph([node], "limit", described[:2], described[2:]), 21, DOMAIN)
    return (
        onnx_ops.InferenceSession(proto.SerializeToString(), options, operators=[PASS]),
        (a, b),
        y,
    )


def as_words(array):
    """View an array's memory as an array of whole 64-bit words."""
    octets = array.reshape(-1).view(np.uint8)
    return octets[: octets.size // 8 * 8].view(np.uint64)
