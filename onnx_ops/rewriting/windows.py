"""Windows of images in what values are: how a position on an image's axis follows from a kernel's and a block's."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from .finding import NearMiss
from .graph import Graph
from .reading.affine import Digit, Dimension, Index, Position, Variable, number, variables_of
from .reading.constructors import Forms
from .reading.digits import is_plain, joined, single
from .reading.forms import Element, Form, Op, value_of
from .sizes import are_numbers, block_count

# Types of nodes that write elements several times.
COPIERS = {
    "Concat",
    "Conv",
    "Gather",
    "GatherElements",
    "GatherND",
    "Im2Col",
    "ScatterElements",
    "ScatterND",
}
MOST_FACTORS = 16  # of a product that is taken apart


@dataclass(frozen=True)
class Window:
    """Along an axis, the position stride * block + dilation * kernel - begin.

    kernel, block  digits; None for one of which there is one
    begin, end     the pads of the axis
    is_flipped     whether the kernel's digit runs backwards
    """

    kernel: Digit | None
    block: Digit | None
    dilation: int
    stride: int
    begin: int
    end: int
    is_flipped: bool

    @property
    def kernel_size(self) -> int:
        size = 1 if self.kernel is None else self.kernel.size
        assert isinstance(size, int)  # `window` refuses others
        return size

    @property
    def block_count(self) -> Dimension:
        return 1 if self.block is None else self.block.size


def window(at: Position, size: Dimension, is_kernel: Callable[[Digit], bool]) -> Window:
    """Return the Window that a position along an axis of this size is. Raises NearMiss."""
    kernels = [term for term in at.terms if is_kernel(term.digit)]
    blocks = [term for term in at.terms if not is_kernel(term.digit)]
    if len(kernels) > 1 or len(blocks) > 1:
        raise NearMiss("along an axis it moves by more than a position in the kernel and a block")
    start = at.start
    dilation: Dimension = 1
    stride: Dimension = 1
    kernel_size: Dimension = 1
    is_flipped = False
    if kernels:
        dilation = kernels[0].step
        kernel_size = kernels[0].size
    if not (isinstance(dilation, int) and isinstance(kernel_size, int)):
        raise NearMiss("the size of the kernel is open")
    if kernels:
        is_flipped = dilation < 0
        start = start + (dilation * (kernel_size - 1) if is_flipped else 0)
        dilation = abs(dilation)
    if blocks:
        stride = blocks[0].step
    if not (isinstance(stride, int) and stride > 0):
        raise NearMiss("blocks overlap in an unknown way, or are in another order")
    if not isinstance(start, int):
        raise NearMiss("where the first block begins is open")
    if start > 0:
        raise NearMiss(f"its first block begins at position {start}, inside of the image")
    kernel = kernels[0].digit if kernels else None
    block = blocks[0].digit if blocks else None
    count = 1 if block is None else block.size
    reach = dilation * (kernel_size - 1) + 1
    for end in dict.fromkeys([-start, *range(stride + dilation * kernel_size - start)]):
        padded = size - start + end
        if block_count(padded, kernel_size, dilation, stride) == count:
            return Window(kernel, block, dilation, stride, -start, end, is_flipped)
        if count == 1 and isinstance(padded, int) and padded >= reach:  # there is no next block
            return Window(kernel, block, dilation, padded - reach + 1, -start, end, is_flipped)
    expected = block_count(size - 2 * start, kernel_size, dilation, stride)
    raise NearMiss(f"it has {count} blocks along an axis instead of {expected}")


def windowed_axes(index: Index) -> list[int]:
    """Return the axes of an index along which it runs by digits that aren't those of the axis."""
    return [axis for axis, at in enumerate(index) if len(at.terms) > 1 and not is_plain(at)]


def moving_axes(index: Index) -> list[int]:
    """Return the axes with windows. Those of blocks that tile an axis look like two axes that are joined."""
    tiled = {axis for axis, at in enumerate(index) if len(at.terms) == 2}
    windowed = {*windowed_axes(index)}
    return sorted(windowed | (tiled - {0, 1} if windowed else tiled))


def are_copied(graph: Graph, values: Iterable[str]) -> bool:
    """Return whether values are written with elements several times: else there is nothing to save."""
    nodes = [graph.producers[value] for value in values if value in graph.producers]
    return not COPIERS.isdisjoint(node.op_type for node in nodes)


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


def places_of(
    forms: Forms, form: Form, known: Index, over: Sequence[Variable] = ()
) -> dict[str, Index]:
    """Return {value: index} of elements that a form is, the innermost ones first.

    known, over  the index and the summed variables whose variables may occur in an index
    """
    variables = {*over, *variables_of(known)}
    places: dict[str, Index] = {form.root: form.index} if isinstance(form, Element) else {}
    places |= forms.places[form]
    return {name: index for name, index in places.items() if variables_of(index) <= variables}


def between(graph: Graph, name: str, sources: Collection[str]) -> set[str]:
    """Return the values of a graph from which a value is computed, up to sources, and itself."""
    reached: set[str] = set()
    pending = [name]
    while pending:
        value = pending.pop()
        if value not in reached and value not in sources:
            reached.add(value)
            node = graph.producers.get(value)
            pending += [] if node is None else [operand for operand in node.input if operand]
    return reached


def check_uses(graph: Graph, name: str, sources: Collection[str]) -> None:
    """Raise NearMiss if what lies between sources and a value is used elsewhere, too, and is larger than these.

    Such a value is computed in any case.
    """
    values = between(graph, name, sources)
    least = min(_count(graph, source) for source in sources)
    inner = {operand for value in values if value in graph.producers
             for operand in graph.producers[value].input}  # fmt: skip
    uses = Counter(operand for value in values if value in graph.producers
                   for operand in graph.producers[value].input)  # fmt: skip
    for value in sorted((values & inner) - {name}):
        others = graph.users[value] - graph.measured[value] - uses[value]
        if others > 0 and _count(graph, value) > least and graph.folded(value) is None:
            raise NearMiss(f"{value} is used elsewhere, too")


def _count(graph: Graph, name: str) -> float:
    """Return the number of a value's elements, infinity if it isn't known."""
    dimensions = graph.type(name).shape
    is_known = dimensions is not None and are_numbers(dimensions)
    return math.prod(dimensions) if is_known else math.inf


def spacings(windows: Sequence[Window]) -> dict[str, list[int]]:
    """Return the attributes dilations, strides and pads of an operator on windows."""
    return {
        "dilations": [window.dilation for window in windows],
        "strides": [window.stride for window in windows],
        "pads": [window.begin for window in windows] + [window.end for window in windows],
    }


def columns_index(images: Position, channels: Position, windows: Sequence[Window]) -> Index:
    """Return the index into columns `[N, C * K, L]`, the output of Im2Col and the input of Col2Im."""
    kernels = [(_position(window.kernel), window.kernel_size) for window in windows]
    rows = joined([(channels, 1), *kernels])
    return images, rows, blocks_position(windows)


def blocks_position(windows: Sequence[Window]) -> Position:
    """Return the position along an axis of blocks."""
    return joined((_position(window.block), window.block_count) for window in windows)


def _position(digit: Digit | None) -> Position:
    return number(0) if digit is None else single(digit)


def kernel_size(windows: Sequence[Window]) -> int:
    """Return the number of positions in a block."""
    return math.prod(window.kernel_size for window in windows)


def flipped(windows: Sequence[Window]) -> list[Digit]:
    """Return the digits of kernels that run backwards."""
    return [window.kernel for window in windows if window.is_flipped and window.kernel is not None]
