"""y = x + amount: all that another operator takes. The tests put this file into a copy of onnx_ops/operators."""

from ..compiler.jit import jitable
from ..declaration import Attribute, Input, Kernel, Operator, Output
from ..errors import require


@jitable
def resolve(attributes, p):
    (amount,) = attributes
    p.amount = amount[0]


@jitable
def plan(parameters, shapes, g):
    (x,) = shapes
    require(len(x) == 1, "shape of {x}", x, "must have rank 1")
    g.rank, g.shape[0], g.size, g.amount = 1, x[0], x[0], parameters.amount
    g.tiles = min(x[0], 4)


@jitable
def infer(parameters, shapes, g):
    (x,) = shapes
    if len(x) == 1:
        g.rank, g.shape[0] = 1, x[0]


@jitable
def shift(x, g, tile, workspace, out):
    for i in range(g.size * tile // g.tiles, g.size * (tile + 1) // g.tiles):
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
        parameters={"amount": None},
        geometry={"size": None, "amount": None},
        resolve=resolve,
        plan=plan,
        infer=infer,
        kernels=(Kernel(shift),),
        reference=lambda parameters, x: x + parameters.amount,
    ),
)
