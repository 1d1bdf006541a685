"""Rules of elementwise operators, and of those that make integers."""

import math

import numpy as np
from onnx import numpy_helper

from ..affine import as_int, number
from ..arithmetic import INTEGERS, quotient_of, remainder_of
from ..forms import CASTS, FORMULAS, Form
from ..reader import Result, Site, whole_position
from .moves import operand_index
from .table import operator


def operands(site: Site) -> list[Form]:
    """Return the forms of all inputs, which are broadcast to the output."""
    return [
        site.read(k, operand_index(site, k)) for k in range(len(site.node.input)) if site.has(k)
    ]


@operator(
    *sorted(FORMULAS.keys() - {"Bool", *CASTS.values(), "Clip", "Div", "Max", "Min", "Trunc"})
)
def elementwise(site: Site) -> Result:
    return site.forms.op(site.node.op_type, *operands(site))


@operator("Max", "Min", "Sum", "Mean")
def variadic(site: Site) -> Result:
    op_type = site.node.op_type
    op = "Add" if op_type in ("Sum", "Mean") else op_type
    total, *rest = operands(site)
    for operand in rest:
        total = site.forms.op(op, total, operand)
    count = site.forms.number(1 + len(rest))
    return site.forms.op("Div", total, count) if op_type == "Mean" else total


@operator("Clip")
def clip(site: Site) -> Result:
    low = site.forms.number(site.attributes.get("min", -np.inf))
    high = site.forms.number(site.attributes.get("max", np.inf))
    if site.has(1):
        low = site.read(1, ())
    if site.has(2):
        high = site.read(2, ())
    return site.forms.op("Clip", site.read(0, site.index), low, high)


@operator("Div")
def divide(site: Site) -> Result:
    dividend, divisor = operands(site)
    if site.elements not in INTEGERS:
        return site.forms.op("Div", dividend, divisor)
    return site.forms.whole(quotient_of(whole_position(dividend), whole_position(divisor)))


@operator("Mod")
def modulo(site: Site) -> Result:
    dividend, divisor = map(whole_position, operands(site))
    is_fmod = bool(site.attributes.get("fmod", 0))
    return site.forms.whole(remainder_of(dividend, divisor, is_fmod))


@operator("Shape")
def shape(site: Site) -> Result:
    (position,) = site.index
    if position.terms:
        return None
    dimensions = site.shape_of(0)[site.attributes.get("start", 0) : site.attributes.get("end")]
    return site.forms.whole(number(dimensions[as_int(position.start)]))


@operator("Size")
def size(site: Site) -> Result:
    return site.forms.whole(number(math.prod(site.shape_of(0))))


@operator("ConstantOfShape")
def constant_of_shape(site: Site) -> Result:
    value = site.attributes.get("value")
    return site.forms.number(0 if value is None else numpy_helper.to_array(value).item())


@operator("Range")
def integer_range(site: Site) -> Result:
    start, step = site.read(0, ()), site.read(2, ())
    steps = site.forms.op("Mul", site.forms.whole(site.index[0]), step)
    return site.forms.op("Add", start, steps)
