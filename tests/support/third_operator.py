"""y = x + amount: all that another operator takes. The tests put this file into a copy of onnx_ops/operators."""

from ..attributes import Attribute
from ..compiler.jit import jitable
from ..declaration import Input, Kernel, Operator, Output, Plan
from ..errors import require
from ..kernels.blocks import share
from ..limits import MAX_TILES, UNKNOWN


@jitable
def shape(attributes, inputs, outputs):
    (x,), (y,) = inputs, outputs
    y[0] = x[0] if len(x) == 1 else UNKNOWN
    return 1


@jitable
def plan(attributes, inputs, outputs, g):
    (x,) = inputs
    require(len(x) == 1, "shape of {x}", x, "must have rank 1")
    g.size, g.amount, g.tiles = x[0], attributes.amount, min(x[0], MAX_TILES)


@jitable
def shift(x, g, tile, workspace, out):
    begin, end = share(g.size, g, tile)
    for i in range(begin, end):
        out[i] = x[i] + g.amount


OPERATORS = (
    Operator(
        domain="test",
        name="Shift",
        versions=(1,),
        ranks=(1,),
        inputs=(Input("x", "T"),),
        outputs=(Output("output", "T"),),
        types={"T": ("float32", "int64")},
        attributes=(Attribute("amount", "int", 1),),
        plan=Plan(shape, plan, {"size": None, "amount": None}),
        kernels=(Kernel(shift),),
        reference=lambda x, *, amount: x + amount,
    ),
)
