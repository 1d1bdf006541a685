"""Windows of images in what values are: how a position on an image's axis follows from a kernel's
and a block's.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import onnx

from .finding import NearMiss
from .reading.affine import (
    Digit,
    Dimension,
    Index,
    Position,
    Term,
    Unknown,
    Variable,
    as_int,
    variables_of,
)
from .reading.digits import digits_along, is_plain, joined, joined_digits
from .reading.forms import Element, Form, Op, value_of
from .reading.reader import Reader, axes_of
from .sizes import block_count, quotient

if TYPE_CHECKING:
    from .reading.reader import GraphView

# Types of nodes that write elements several times.
COPIERS = {
    "Concat",
    "Conv",
    "Gather",
    "GatherElements",
    "GatherND",
    "ScatterElements",
    "ScatterND",
}
MOST_ENDS = 64  # pads of an open size that are tried
MOST_FACTORS = 16  # of a product that is taken apart


@dataclass(frozen=True)
class Window:
    """Along an axis, the position stride * block + dilation * kernel - begin.

    kernel, block  the digits of which these numbers consist, the most significant one first
    begin, end     the pads of the axis; what is cut off if they are negative
    is_flipped     whether the kernel's digit runs backwards
    """

    kernel: tuple[Digit, ...]
    block: tuple[Digit, ...]
    dilation: int
    stride: int
    begin: int
    end: int
    is_flipped: bool

    @property
    def kernel_size(self) -> int:
        return math.prod(as_int(digit.size) for digit in self.kernel)

    @property
    def block_count(self) -> Dimension:
        return math.prod(digit.size for digit in self.block)


def window(position: Position, size: Dimension, kernel_digits: Collection[Digit]) -> Window:
    """Return the Window that a position along an axis of this size is. Raises NearMiss."""
    step, kernel = _regular_steps(
        [term for term in position.terms if term.digit in kernel_digits], "the kernel"
    )
    stride, block = _regular_steps(
        [term for term in position.terms if term.digit not in kernel_digits], "blocks"
    )
    if stride < 0 or (step < 0 and len(kernel) > 1):
        raise NearMiss("blocks are in another order")
    kernel_size = math.prod(digit.size for digit in kernel)
    if not isinstance(kernel_size, int):
        raise NearMiss("the size of the kernel is open")
    dilation = abs(step)
    reach = dilation * (kernel_size - 1) + 1
    start = position.start + (step * (kernel_size - 1) if step < 0 else 0)
    if not isinstance(start, int):
        raise NearMiss("where the first block begins is open")
    count = math.prod(digit.size for digit in block)
    # The end with which the last block just fits.
    fitting = start + stride * (count - 1) + reach - size
    result = Window(kernel, block, dilation, stride, -start, 0, step < 0)
    for end in _ends(start, fitting, stride + reach):
        padded = size - start + end
        if block_count(padded, kernel_size, dilation, stride) == count:
            return replace(result, end=end)
        if count == 1 and isinstance(padded, int) and padded >= reach:  # there is no next block
            return replace(result, end=end, stride=padded - reach + 1)
    if isinstance(fitting, int):  # some blocks are left out at the end
        return replace(result, end=fitting)
    expected = block_count(size - 2 * start, kernel_size, dilation, stride)
    raise NearMiss(f"it has {count} blocks along an axis instead of {expected}")


def _ends(start: int, fitting: Dimension, length: int) -> Iterator[int]:
    """Yield the pads at an end that may be those of a window: first as large as at the begin, then
    the least.
    """
    yield -start
    if isinstance(fitting, int):
        yield max(fitting, 0)
    else:  # the last blocks of an open size may leave something over
        yield from range(min(length, MOST_ENDS))
        yield from range(max(-start - MOST_ENDS, 0), max(MOST_ENDS - start, 0))


def _regular_steps(terms: Sequence[Term], title: str) -> tuple[int, tuple[Digit, ...]]:
    """Return (step, digits) of terms that are one number times a step. Raises NearMiss."""
    if not terms:
        return 1, ()
    steps = [term.step for term in terms]
    numbers = [step for step in steps if isinstance(step, int)]
    step = min(numbers, key=abs, default=0)
    if step == 0:
        raise NearMiss(f"how {title} follow each other depends on an open size")
    # -1 is no step along an axis.
    scaled = [term._replace(step=quotient(term.step, step) or -1) for term in terms]
    try:
        return step, tuple(digits_along(Position(0, tuple(scaled))))
    except Unknown:
        raise NearMiss(
            "along an axis it moves by more than a position in the kernel and a block"
        ) from None


def windowed_axes(index: Index) -> list[int]:
    """Return the axes of an index along which it runs by digits that aren't those of the axis."""
    return [
        axis
        for axis, position in enumerate(index)
        if len(position.terms) > 1 and not is_plain(position)
    ]


def moving_axes(index: Index) -> list[int]:
    """Return the axes with windows.

    Those of blocks that tile an axis look like two axes that are joined.
    """
    tiled = {axis for axis, position in enumerate(index) if len(position.terms) == 2}
    windowed = {*windowed_axes(index)}
    return sorted(windowed | (tiled - {0, 1} if windowed else tiled))


def types_of(graph: "GraphView", values: Iterable[str]) -> set[str]:
    """Return the types of the nodes that make values."""
    return {graph.producers[value].op_type for value in values if value in graph.producers}


def are_written_out(graph: "GraphView", values: Iterable[str]) -> bool:
    """Return whether a node that makes one of these values writes windows out, by a table of
    indices, say.
    """
    nodes = [graph.producers[value] for value in values if value in graph.producers]
    return any(node.op_type in COPIERS and not _is_choice(graph, node) for node in nodes)


def _is_choice(graph: "GraphView", node: onnx.NodeProto) -> bool:
    """Return whether a node only takes a part of an axis, or joins two values: as of queries, keys
    and values.
    """
    if node.op_type == "Gather":
        return len(graph.type(node.input[1]).shape or ()) < 2
    return node.op_type == "Concat" and len(node.input) < 3


def factors_of(form: Form) -> tuple[float, list[Form]]:
    """Return (number, factors) of a product; of one of many factors, itself."""
    scale = 1.0
    factors: list[Form] = []
    pending = [form]
    while pending:
        factor = pending.pop(0)
        value = value_of(factor)
        match factor:
            case _ if value is not None:
                scale *= value
            case Op("Mul", operands):
                pending = [*operands, *pending]
            case Op("Neg", (operand,)):
                scale = -scale
                pending = [operand, *pending]
            case Op("Div", (dividend, divisor)) if value_of(divisor):
                scale /= value_of(divisor) or 1.0
                pending = [dividend, *pending]
            case _:
                factors.append(factor)
        if len(factors) + len(pending) > MOST_FACTORS:
            return 1.0, [form]
    return scale, factors


def occurrences_before(reader: Reader, form: Form, name: str) -> dict[str, Index]:
    """Return {value: index} of elements that a form is, of values that are computed before another
    one, `name`.
    """
    occurrences: dict[str, Index] = {form.root: form.index} if isinstance(form, Element) else {}
    occurrences |= reader.forms.occurrences[form]
    order = reader.order
    return {
        value: index for value, index in occurrences.items() if order.get(value, -1) < order[name]
    }


def occurrences_of(
    reader: Reader, form: Form, name: str, over: Sequence[Variable] = ()
) -> dict[str, Index]:
    """Return {value: index} of elements that a form is, of values that are computed before another
    one.

    name  that value: indices are over its axes
    over  summed variables that may occur in an index, too
    """
    variables = {*over, *variables_of(axes_of(reader.shape(name)))}
    occurrences = occurrences_before(reader, form, name)
    return {
        value: index for value, index in occurrences.items() if variables_of(index) <= variables
    }


def between(graph: "GraphView", name: str, sources: Collection[str]) -> set[str]:
    """Return the values of a graph from which a value is computed, up to sources, and itself.

    Raises Exhausted.
    """
    reached: set[str] = set()
    pending = [name]
    while pending:
        value = pending.pop()
        if value not in reached and value not in sources:
            graph.reader.budget.form()
            reached.add(value)
            node = graph.producers.get(value)
            pending += [] if node is None else [operand for operand in node.input if operand]
    return reached


def reaches(graph: "GraphView", values: Iterable[str], source: str) -> bool:
    """Return whether a node that makes one of these values reads a source."""
    nodes = (graph.producers[value] for value in values if value in graph.producers)
    return any(source in node.input for node in nodes)


def check_uses(graph: "GraphView", name: str, sources: Collection[str]) -> None:
    """Raise NearMiss if what lies between sources and a value is used elsewhere, too, and is larger
    than these.

    Such a value is computed in any case.
    """
    values = between(graph, name, sources)
    least = min(graph.type(source).count for source in sources)
    uses = Counter(operand for value in values if value in graph.producers
                   for operand in graph.producers[value].input)  # fmt: skip
    for value in sorted((values & uses.keys()) - {name}):
        other_uses = graph.users[value] - graph.measured[value] - uses[value]
        if other_uses > 0 and graph.type(value).count > least and graph.folded(value) is None:
            raise NearMiss(f"{value} is used elsewhere, too")


def spacings(windows: Sequence[Window]) -> dict[str, list[int]]:
    """Return the attributes dilations, strides and pads of an operator on windows."""
    pads = [*(window.begin for window in windows), *(window.end for window in windows)]
    return {
        "dilations": [window.dilation for window in windows],
        "strides": [window.stride for window in windows],
        "pads": [max(pad, 0) for pad in pads],
    }


def crops(windows: Sequence[Window]) -> list[tuple[int, int]]:
    """Return how many positions are cut off at the begin and the end of each axis."""
    return [(max(-window.begin, 0), max(-window.end, 0)) for window in windows]


def columns_index(images: Position, channels: Position, windows: Sequence[Window]) -> Index:
    """Return the index into columns `[N, C * K, L]`, the output of Im2Col and the input of
    Col2Im.
    """
    kernels = [(joined_digits(window.kernel), window.kernel_size) for window in windows]
    rows = joined([(channels, 1), *kernels])
    return images, rows, blocks_position(windows)


def blocks_position(windows: Sequence[Window]) -> Position:
    """Return the position along an axis of blocks."""
    return joined((joined_digits(window.block), window.block_count) for window in windows)


def kernel_size(windows: Sequence[Window]) -> int:
    """Return the number of positions in a block."""
    return math.prod(window.kernel_size for window in windows)


def flipped(windows: Sequence[Window]) -> list[Digit]:
    """Return the digits of kernels that run backwards."""
    return [window.kernel[0] for window in windows if window.is_flipped and window.kernel]
