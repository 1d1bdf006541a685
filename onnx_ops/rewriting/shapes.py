"""The types and shapes of a graph's values, from its inputs and constants on: sizes are ints or `Size`s.

They are worked out when a pattern asks for them. What other tools have written into a model about the values between
is not believed, since the model may have been changed since, and names that tools make up for sizes mean nothing.
Where a rule is missing here, onnx's own inference is asked about the one node. Only where that doesn't know a rank,
either, it is the one that the model states.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..declaration import limits, plain
from ..declaration.dtypes import TABLE
from ..model.builtin import schemas
from ..model.nodes import domain_of, subgraphs
from . import sizes
from .finding import tried
from .reading.integers import axes_of, cuts, integer_list, integers, part_of_sequence, sliced, whole_number
from .reading.reader import attributes_of
from .sizes import quotient

LARGEST = 256  # elements of a constant that onnx's inference gets to know
EXACT = 2**8  # product of numerator and denominator of a scale, for which float32 scales any image's size exactly


@dataclass(frozen=True)
class Type:
    """The type of a tensor. elements: their number in ONNX, 0 if unknown; shape: None if the rank is unknown.

    Of a sequence or an optional value: that of the tensors in it, of which only the elements are known.
    """

    elements: int = 0
    shape: tuple | None = None

    @property
    def dimensions(self):
        """The shape as models state it: a list of ints, names and None (also for impossible sizes), or None."""
        return None if self.shape is None else [
            sizes.name_of(d) if not isinstance(d, int) else d if 0 <= d <= limits.ELEMENTS else None for d in self.shape
        ]  # fmt: skip

    @property
    def dtype(self):
        """The elements' type in NumPy."""
        return helper.tensor_dtype_to_np_dtype(self.elements)


UNKNOWN, MISREAD = Type(), object()


def type_of(graph, name):
    """Return the Type of a value of the graph, or of one around it."""
    pending = [name]
    while pending:  # what a value is computed from comes first: chains of nodes may be long
        last = pending[-1]
        home = graph.home(last) or graph
        if last in home.types:
            pending.pop()
            continue
        node = home.producers.get(last)
        inputs = [] if node is None else [*filter(None, node.input)]
        unknown = [each for each in inputs if each not in (graph.home(each) or graph).types]
        if unknown and last not in home.visited:
            home.visited.add(last)
            pending += unknown
            continue
        pending.pop()
        if unknown:  # a value that is computed from itself
            home.types[last] = UNKNOWN
            continue
        for output, its_type in _outputs(home, node, last).items():
            home.types.setdefault(output, its_type)
    return (graph.home(name) or graph).types[name]


def _outputs(graph, node, name):
    """Return {value: Type} for a value, and for what else its node makes."""
    tensor = graph.initializers.get(name)
    if name in graph.inputs or (node is None and tensor is None):
        return {name: _completed(graph, name, tried(_of_body, graph, name) or UNKNOWN)}
    if tensor is not None:
        return {name: Type(tensor.data_type, tuple(tensor.dims))}
    inputs = [type_of(graph, each) if each else None for each in node.input]
    names = [each for each in node.output if each]
    key = domain_of(node), node.op_type
    if any(subgraphs(node)):
        made = _by_subgraphs(graph, node)
    elif any(a.ref_attr_name for a in node.attribute):
        made = {}
    elif (rule := RULES.get(key[0] or "ai.onnx", {}).get(key[1])) and key not in graph.model.custom:
        its_type = tried(_by_rule, rule, graph, node, inputs)
        made = {node.output[0]: its_type} if its_type else _by_onnx_runtime(node, inputs, MISREAD)
    elif key in graph.model.operators:
        made = tried(_by_declaration, graph, node, inputs) or {}
    else:
        made = tried(_by_onnx, graph, node, inputs) or _by_onnx_runtime(node, inputs)
    return {each: _completed(graph, each, made.get(each, UNKNOWN)) for each in names}


def _completed(graph, name, inferred):
    """Return the type of a value with what isn't known: unknown sizes get names, an unknown rank is as stated.

    Where a rule has failed, so that the shape is MISREAD, the rank that is stated may be what another tool misread.
    """
    stated = _stated(graph, name)
    elements, dimensions = inferred.elements or stated.elements, inferred.shape
    if dimensions is None:
        dimensions = stated.shape
    if dimensions is MISREAD:
        dimensions = None
    if dimensions is not None:
        is_size = lambda d: d is not None and not (isinstance(d, int) and d < 0)  # CenterCropPad makes 0 of less
        dimensions = tuple(d if is_size(d) else sizes.size_of(name, k) for k, d in enumerate(dimensions))
    return Type(elements, dimensions)


def _stated(graph, name):
    """Return the type that the model states. Of its sizes only those of the model's inputs must hold."""
    stated = graph.stated.get(name)
    if stated is None:
        return UNKNOWN
    must_hold = name in graph.inputs and graph.is_main  # a Loop's body may get other sizes in each turn
    dimensions, holds_many = None, False
    while (kind := stated.WhichOneof("value")) in ("sequence_type", "optional_type"):
        stated, holds_many = getattr(stated, kind).elem_type, True
    if stated.tensor_type.HasField("shape") and not holds_many:
        dimensions = tuple(
            d.dim_value if must_hold and d.HasField("dim_value") and d.dim_value >= 0
            else sizes.named(d.dim_param) if must_hold and d.dim_param
            else sizes.size_of(name, k)
            for k, d in enumerate(stated.tensor_type.shape.dim)
        )  # fmt: skip
    return Type(stated.tensor_type.elem_type, dimensions)


def _of_body(graph, name):
    """Return the Type of an input of a Loop's or Scan's body as far as it needn't be stated there.

    It has the elements that are passed and, of a Scan, the rank, which in a Loop may be another one in each turn.
    """
    if graph.is_main or name not in graph.inputs:
        return UNKNOWN
    names, given = [value.name for value in graph.owner.input], graph.node.input
    if len(given) > len(names):  # a Scan before version 9 has one more
        return UNKNOWN
    outside = dict(zip(names, given, strict=False)).get(name)
    passed = type_of(graph.outer, outside) if outside else UNKNOWN
    if graph.node.op_type != "Scan" or passed.shape is None:
        return Type(passed.elements)
    is_scanned = names.index(name) >= len(names) - attributes_of(graph.node)["num_scan_inputs"]
    return Type(passed.elements, (None,) * (len(passed.shape) - is_scanned))


def _by_rule(rule, graph, node, inputs):
    made = rule(graph, node, attributes_of(node), *inputs)
    return Type(inputs[0].elements, made) if isinstance(made, tuple) else made


def _by_subgraphs(graph, node):
    """Return {output: Type} with the element types, which those of the last outputs of all subgraphs are."""
    columns = []
    for inner in graph.inside(node):
        columns.append([type_of(inner, each.name).elements for each in inner.owner.output])
    count = len(node.output)  # a Loop's body has a condition before these
    kinds = zip(*(column[-count:] for column in columns), strict=False)
    return {name: Type(each[0]) for name, each in zip(node.output, kinds, strict=False) if len({*each}) == 1}


def _by_declaration(graph, node, inputs):
    """Return {output: Type} of an operator of this package. Its plan may copy open sizes, and computes with others."""
    operator, letters = graph.model.operators[domain_of(node), node.op_type], {}
    given = attributes_of(node)
    values = [_texts(integers(graph, each), letters) if i.values and each else None
              for i, each in zip(operator.each_input(len(inputs)), node.input, strict=True)]  # fmt: skip
    shapes = tried(
        lambda: plain.infer(
            operator,
            operator.values({name: given[name] for a in operator.attributes for name in a.names if name in given}),
            [None if i is None else _texts(i.shape, letters) for i in inputs],
            values,
        )
    ) or [None] * len(operator.outputs)
    made = {}
    for name, like, output, its_shape in zip(node.output, operator.likeness(), operator.outputs, shapes, strict=False):
        elements = TABLE[operator.types[output.type][0]].onnx if like is None else inputs[like].elements
        made[name] = Type(elements, its_shape and tuple(letters.get(d, d) for d in its_shape))
    return made


def _texts(dimensions, letters):
    """Return a shape with texts for open sizes, which are added to `letters`, {text: Size}; None if it is unknown."""
    letters.update((repr(d), d) for d in dimensions or ())
    return None if dimensions is None else [d if isinstance(d, int | None) else repr(d) for d in dimensions]


def _by_onnx(graph, node, inputs):
    """Return {output: Type} as far as onnx infers them for a node."""
    letters = {}
    imports = list(graph.model.proto.opset_import)
    types, data = {}, {}
    for name, its_type in zip(node.input, inputs, strict=False):
        if not name:
            continue
        if not its_type.elements:
            return {}
        types[name] = helper.make_tensor_type_proto(its_type.elements, _texts(its_type.shape, letters))
        constant = _constant(graph, name, its_type)
        if constant is not None:
            data[name] = constant
    version = graph.opset if node.domain == "" else next((i.version for i in imports if i.domain == node.domain), 1)
    try:
        made = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op_type, version, node.domain),
            node,
            types,
            data,
            None,
            imports,
            graph.model.proto.ir_version,
        )
    except Exception:  # an operator that onnx doesn't know, or a node that the session will refuse
        return {}
    return {name: _read(its_type.tensor_type, letters) for name, its_type in made.items()}


def _by_onnx_runtime(node, inputs, shape=None):
    """Return {output: Type} with this shape, and the elements if a schema says that those of an input are the same."""
    known, kinds = schemas().get((domain_of(node), node.op_type)), []
    if known is not None:
        first = known[-1]
        pairs = list(zip(first.inputs, inputs, strict=False))
        # Of inputs with one type the first one counts: once, Tile's repeats were floats.
        same = {formal.typeStr: its_type.elements for formal, its_type in reversed(pairs) if its_type}
        kinds = [same.get(formal.typeStr, 0) for formal in first.outputs]
    return {name: Type(kind, shape) for name, kind in itertools.zip_longest(node.output, kinds, fillvalue=0) if name}


def _read(tensor, letters):
    """Return the Type that onnx infers. letters: {text: Size} of the inputs' sizes."""
    if not tensor.HasField("shape"):
        return Type(tensor.elem_type)
    return Type(tensor.elem_type, tuple(
        d.dim_value if d.HasField("dim_value") else letters.get(d.dim_param) for d in tensor.shape.dim
    ))  # fmt: skip


def _constant(graph, name, its_type):
    """Return a small constant as a TensorProto; None for other values."""
    sizes_are_known = its_type.shape is not None and sizes.are_numbers(its_type.shape)
    if not sizes_are_known or math.prod(max(size, 1) for size in its_type.shape) > LARGEST:
        return None
    array = graph.array(name)
    if array is None and its_type.elements in (TensorProto.INT64, TensorProto.INT32):
        known = integer_list(graph, name)
        array = None if known is None else np.array(known, its_type.dtype).reshape(its_type.shape)
    return None if array is None else numpy_helper.from_array(np.asarray(array))


# Rules for nodes that compute with sizes: each returns the Type of the output, or only its shape if its elements are of
# the first input's type. Sizes that are unknown are None.


def broadcast(*shapes):
    """Return the shape to which shapes are broadcast; None for a size that is not known."""
    if None in shapes:
        return None
    rank = max(map(len, shapes))
    columns = zip(*((1,) * (rank - len(each)) + each for each in shapes), strict=True)
    return tuple(map(sizes.broadcast, columns))


def _elementwise(graph, node, attributes, *inputs):
    kinds = [i.elements for i in inputs if i]
    kind = TensorProto.BOOL if node.op_type in COMPARISONS else kinds[node.op_type == "Where"]
    return Type(kind, broadcast(*(i.shape for i in inputs if i)))


def _reshape(graph, node, attributes, x, target=None):
    """Of a value without elements, an open size that is 0 may be another one: Reshape then copies the input's."""
    made, dimensions = integers(graph, node.input[1]), x.shape
    if made is None:
        return Type(x.elements)
    if not attributes.get("allowzero"):
        copied = (None,) * len(made) if dimensions is None else dimensions
        made = [copied[k] if isinstance(d, int) and d == 0 else d for k, d in enumerate(made)]
    if made.count(-1) == 1:
        others = None if dimensions is None or None in made else math.prod(d for d in made if d != -1)
        rest = None if not others else quotient(math.prod(dimensions), others)
        made[made.index(-1)] = rest
    return tuple(made)


def _resize(graph, node, attributes, x, *parameters):
    """Return the shape that Resize or Upsample makes.

    Before version 11 the scales are the second input, and before version 9 an attribute.
    """
    axes, made = attributes.get("axes") or range(len(x.shape)), None
    if attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        pass
    elif node.input[3:]:
        made = integers(graph, node.input[3])
    else:
        factors = attributes["scales"] if "scales" in attributes else graph.folded(node.input[1:3][-1])
        if factors is not None:
            made = [_scaled(x.shape[axis], factor) for axis, factor in zip(axes, factors, strict=True)]
    dimensions = list(x.shape)
    for axis, size in zip(axes, [None] * len(axes) if made is None else made, strict=True):
        dimensions[axis] = size
    return tuple(dimensions)


def _scaled(size, factor):
    """Leave open what float32 rounds up, as 5 * 1.4: ONNX Runtime makes 7 elements, and replaces a Shape by 6."""
    if isinstance(size, int):
        exact, rounded = math.floor(size * float(factor)), math.floor(np.float32(size) * np.float32(factor))
        return exact if exact == rounded else None
    times, by = float(factor).as_integer_ratio()
    return size * times // by if times * by <= EXACT or by == 1 else None


def _expand(graph, node, attributes, x, target):
    made = integers(graph, node.input[1])
    return Type(x.elements, None if made is None else broadcast(x.shape, tuple(made)))


def _tile(graph, node, attributes, x, repeats):
    known = integers(graph, node.input[1]) or [None] * len(x.shape)
    return tuple(None if r is None else d * r for d, r in zip(x.shape, known, strict=True))


def _constant_of_shape(graph, node, attributes, target):
    value, made = attributes.get("value"), integers(graph, node.input[0])
    return Type(value.data_type if value is not None else TensorProto.FLOAT, None if made is None else tuple(made))


def _range(graph, node, attributes, start, *others):
    """Of floats, too: exporters write those of a whole number of steps."""
    first, limit, step = (whole_number(graph, name) for name in node.input)
    if isinstance(step, int) and step < 0:
        first, limit, step = limit, first, -step
    if None in (first, limit, step) or not isinstance(step, int) or step == 0:
        return (None,)
    return (sizes.at_least_zero((limit - first + step - 1) // step),)


def _shape(graph, node, attributes, x):
    rank = None if x.shape is None else len(x.shape[attributes.get("start", 0) : attributes.get("end")])
    return Type(TensorProto.INT64, (rank,))


def _concat(graph, node, attributes, *inputs):
    shapes = [i.shape for i in inputs]
    rank = max(len(s) for s in shapes if s is not None)
    axis, dimensions = attributes["axis"] % rank, []
    for k in range(rank):
        column = [None if s is None else s[k] for s in shapes]
        if k == axis:
            dimensions.append(None if None in column else sum(column))
        else:  # ONNX Runtime ignores the sizes of an input without elements
            numbers, others = ({d for d in column if isinstance(d, int) is is_int} for is_int in (True, False))
            is_certain = len(numbers) < 2 and not (others and 0 in numbers) and None not in others
            dimensions.append(sizes.simplest(numbers or others) if is_certain else None)
    return tuple(dimensions)


def _slice(graph, node, attributes, x, *parameters):
    dimensions, known = list(x.shape), cuts(graph, node)
    if known is None:
        return (None,) * len(dimensions)
    for axis, start, end, step in known:
        counted = None if None in (start, end, step) else tried(sliced, dimensions[axis], start, end, step)
        dimensions[axis] = counted and counted[1]
    return tuple(dimensions)


def _gather(graph, node, attributes, x, index):
    axis = range(len(x.shape))[attributes.get("axis", 0)]
    return *x.shape[:axis], *index.shape, *x.shape[axis + 1 :]


def _pad(graph, node, attributes, x, *parameters):
    axes = integer_list(graph, node.input[3]) if node.input[3:] and node.input[3] else range(len(x.shape))
    pads = attributes["pads"] if "pads" in attributes else integers(graph, node.input[1])
    if pads is None or axes is None:
        return (None,) * len(x.shape)
    dimensions = list(x.shape)
    for axis, *both in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        dimensions[axis] = None if None in both else dimensions[axis] + sum(both)
    return tuple(dimensions)


def _flatten(graph, node, attributes, x):
    axis = attributes.get("axis", 1)
    axis += len(x.shape) if axis < 0 else 0
    return math.prod(x.shape[:axis]), math.prod(x.shape[axis:])


def _squeeze(graph, node, attributes, x, *parameters):
    """onnx takes the axes to be in order before version 13."""
    axes = axes_of(graph, node)
    if axes is None:
        axes = [k for k, d in enumerate(x.shape) if d == 1]
        if len(node.input) > 1 or not sizes.are_numbers(x.shape):
            raise ValueError("not known")
    elif not axes:
        raise ValueError("ONNX Runtime leaves out all axes of size 1, and onnx says that it leaves out none")
    left_out = {range(len(x.shape))[axis] for axis in axes}
    return tuple(d for k, d in enumerate(x.shape) if k not in left_out)


def _unsqueeze(graph, node, attributes, x, *parameters):
    axes, dimensions = axes_of(graph, node), list(x.shape)
    rank = len(dimensions) + len(axes)
    for axis in sorted(range(rank)[axis] for axis in axes):
        dimensions.insert(axis, 1)
    return tuple(dimensions)


# Convolutions and pools. ONNX Runtime refuses images of size 0, and those that make a convolution's output empty.


def _is_same(attributes):
    return attributes.get("auto_pad", b"").startswith(b"SAME")


def _windows(attributes, image, kernel):
    """Yield (size, begin, end, extent, stride) along each axis of an image: its pads, and what a window spans."""
    axes = len(image)
    strides, dilations = (attributes.get(name) or [1] * axes for name in ("strides", "dilations"))
    extents = [dilation * (k - 1) + 1 for k, dilation in zip(kernel, dilations, strict=True)]
    pads = attributes.get("pads") or [0] * 2 * axes
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        pads = [0] * axes + [extent - 1 if _is_same(attributes) else 0 for extent in extents]
    return zip(image, pads[:axes], pads[axes:], extents, strides, strict=True)


def _channels_second(rule):
    """Make a rule of one for values whose second axis is that of channels, which may be the last one here."""

    def turned(graph, node, attributes, x, *others):
        if not attributes.get("channels_last") and not node.op_type.startswith("Nhwc"):
            return rule(graph, node, attributes, x, *others)
        n, *image, channels = x.shape
        made = rule(graph, node, attributes, Type(x.elements, (n, channels, *image)), *others)
        return Type(made.elements, (n, *made.shape[2:], made.shape[1]))

    return turned


def _conv(graph, node, attributes, x, *others):
    is_quantized, elements = node.op_type == "QLinearConv", x.elements
    weights = others[2 if is_quantized else 0].shape
    if is_quantized or node.op_type == "ConvInteger":
        elements = others[6].elements if is_quantized else TensorProto.INT32
    n, _, *image = x.shape or (None,) * len(weights)
    made = [
        None if size is None else (size + begin + end - extent) // stride + 1
        for size, begin, end, extent, stride in _windows(
            attributes, image, attributes.get("kernel_shape") or weights[2:]
        )
    ]
    return Type(elements, (n, weights[0], *made))


def _pool(graph, node, attributes, x, *others):
    """A pool rounds to zero, so that an image smaller than the kernel may give a window.

    Rounded up, onnx and ONNX Runtime 1.20 count windows that begin after the image, which newer ones leave out: such
    sizes are not known. With SAME_UPPER and SAME_LOWER onnx takes account of dilations, and ONNX Runtime doesn't.
    """
    n, channels, *image = x.shape
    made = []
    for size, begin, end, extent, stride in _windows(attributes, image, attributes["kernel_shape"]):
        if attributes.get("ceil_mode") and not _is_same(attributes):
            made.append(None if end + stride > extent else (size + begin + end - extent - 1) // stride + 2)
        elif begin + end + 1 >= extent:
            made.append((size + begin + end - extent) // stride + 1)
        else:
            made.append(sizes.truncated(size + begin + end - extent, stride) + 1)
    is_uncertain = _is_same(attributes) and any(d != 1 for d in attributes.get("dilations", ()))
    return Type(x.elements, (n, channels, *([None] * len(image) if is_uncertain else made)))


def _global_pool(graph, node, attributes, x, *others):
    return Type(x.elements, x.shape and (*x.shape[:2], *[1] * (len(x.shape) - 2)))


def _conv_transpose(graph, node, attributes, x, weights, *others):
    """With SAME_UPPER and SAME_LOWER onnx adds the output's padding, which ONNX Runtime makes up for.

    Of an output_shape it takes the first axes to be others than those of the image.
    """
    n, _, *image = x.shape
    added, made = attributes.get("output_padding") or [0] * len(image), attributes.get("output_shape")
    if made is None:
        made = []
        windows = _windows(attributes, image, attributes.get("kernel_shape") or weights.shape[2:])
        for more, (size, begin, end, extent, stride) in zip(added, windows, strict=True):
            pads = max(0, more + extent - stride) if _is_same(attributes) else begin + end
            made.append(stride * (size - 1) + more + extent - pads)
    return n, weights.shape[1] * attributes.get("group", 1), *made[-len(image) :]


def _depth_to_space(graph, node, attributes, x):
    (n, channels, *image), by = x.shape, attributes["blocksize"]
    return n, channels // (by * by), *(size * by for size in image)


def _space_to_depth(graph, node, attributes, x):
    (n, channels, *image), by = x.shape, attributes["blocksize"]
    return n, channels * by * by, *(size // by for size in image)


def _attention(graph, node, attributes, q, k, v, *others):
    """Of three axes, the last one is the heads' together; where its size is open, onnx makes it 0."""
    made = _by_onnx(graph, node, [q, k, v, *others])
    if q.shape is None or len(q.shape) != 3:
        return made[node.output[0]]
    return *q.shape[:2], None


def _einsum(graph, node, attributes, *inputs):
    """onnx takes each letter's size from one input, although it may be 1 there, and broadcast to that of others."""
    made = _by_onnx(graph, node, inputs)[node.output[0]]
    equation = attributes["equation"].decode().replace(" ", "")
    terms = [] if "." in equation else equation.split("->")[0].split(",")
    pairs = {pair for term, x in zip(terms, inputs, strict=False) for pair in zip(term, x.shape, strict=True)}
    is_certain = terms and len(pairs) == len({letter for letter, _ in pairs})
    return made if is_certain else Type(made.elements, (None,) * len(made.shape))


def _stft(graph, node, attributes, signal, *others):
    """Without the attribute onesided, onnx takes it for 0, and its default is 1."""
    made = _by_onnx(graph, node, [signal, *others])[node.output[0]]
    return made if "onesided" in attributes else Type(made.elements, (*made.shape[:2], None, 2))


def _non_zero(graph, node, attributes, x):
    """ONNX Runtime takes a scalar for a vector."""
    return Type(TensorProto.INT64, (None if x.shape is None else max(len(x.shape), 1), None))


def _affine_grid(graph, node, attributes, theta, size):
    n, _, *image = integers(graph, node.input[1])
    return n, *image, len(image)


def _fused_matmul(graph, node, attributes, a, b):
    first, second = (
        (*i.shape[1:-1], i.shape[0], i.shape[-1]) if attributes.get(f"transBatch{name}") else i.shape
        for name, i in (("A", a), ("B", b))
    )
    rows, columns = first[-1 if attributes.get("transA") else -2], second[-2 if attributes.get("transB") else -1]
    return *broadcast(first[:-2], second[:-2]), rows, columns


def _into_blocks(graph, node, attributes, x):
    """Return the shape in blocks of channels. The size of a block depends on the CPU."""
    n, *others = x.shape
    return n, None, *(others[:-1] if attributes.get("channels_last") else others[1:])


def _out_of_blocks(graph, node, attributes, x):
    n, _, *image = x.shape
    channels = attributes["channels"]
    return (n, *image, channels) if attributes.get("channels_last") else (n, channels, *image)


def _upsample_blocks(graph, node, attributes, x):
    factors = attributes.get("scales", [1] * len(x.shape))
    return tuple(size * factor for size, factor in zip(x.shape, factors, strict=True))


def _like_the_first(graph, node, attributes, x, *others):
    return x


def _in_a_sequence(graph, node, attributes, x, *others):
    return Type(x.elements)


def _gemm(graph, node, attributes, a, b, *others):
    rows, columns = a.shape[-1 if attributes.get("transA") else 0], b.shape[0 if attributes.get("transB") else -1]
    return rows, columns


def _sequence_empty(graph, node, attributes):
    return Type(attributes.get("dtype", TensorProto.FLOAT))


def _sequence_at(graph, node, attributes, sequence, at):
    part = tried(part_of_sequence, graph, node)
    if part is None:
        return Type(sequence.elements, MISREAD)
    axis, _, size = part
    x = type_of(graph, graph.producer(node.input[0]).input[0])
    return Type(x.elements, (*x.shape[:axis], size, *x.shape[axis + 1 :]))


def _col2im(graph, node, attributes, x, image_shape, block_shape):
    """The declaration states only sizes of an image that are numbers."""
    n, channels, _ = x.shape
    positions = math.prod(integer_list(graph, node.input[2]))
    return n, channels // positions, *integers(graph, node.input[1])


def _im2col(graph, node, attributes, x):
    blocks = sizes.im2col_blocks(attributes, x.shape[2:])
    return x.shape[0], x.shape[1] * math.prod(attributes["kernel_shape"]), math.prod(blocks)


COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
ELEMENTWISE = (
    "Add", "And", "Div", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "PRelu", "Sub", "Sum", "Where", "Xor",
)  # fmt: skip
OF_SEQUENCES = ("ConcatFromSequence", "Optional", "OptionalGetElement", "SequenceConstruct", "SequenceErase",
                "SequenceInsert", "SplitToSequence")  # fmt: skip
ON_IMAGES = {
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), _global_pool),
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), _conv),
}
# What ONNX Runtime's optimizer makes of others. Where channels are in blocks, there are as many of them as the weights
# have, which are filled up to whole blocks.
BLOCKS = "com.microsoft.nchwc"
FUSED = {
    **dict.fromkeys(("FusedConv", "NhwcFusedConv", "QLinearConv"), _channels_second(_conv)),
    **dict.fromkeys(("NhwcMaxPool", "QLinearAveragePool"), _channels_second(_pool)),
    **dict.fromkeys(("BiasGelu", "BiasSoftmax", "FastGelu", "Gelu", "QuickGelu", "SkipLayerNormalization",
                     "SkipSimplifiedLayerNormalization"), _like_the_first),
    "FusedGemm": _gemm,
    "FusedMatMul": _fused_matmul,
    "QLinearGlobalAveragePool": _channels_second(_global_pool),
}  # fmt: skip
# {domain: {type of node: rule}}
RULES = {
    "ai.onnx": {
        **dict.fromkeys((*ELEMENTWISE, *COMPARISONS), _elementwise),
        **dict.fromkeys(OF_SEQUENCES, _in_a_sequence),
        **ON_IMAGES,
        "AffineGrid": _affine_grid,
        "Attention": _attention,
        "Col2Im": _col2im,
        "Concat": _concat,
        "ConstantOfShape": _constant_of_shape,
        "ConvTranspose": _conv_transpose,
        "DepthToSpace": _depth_to_space,
        "Einsum": _einsum,
        "Expand": _expand,
        "Flatten": _flatten,
        "Gather": _gather,
        "NonZero": _non_zero,
        "Pad": _pad,
        "Range": _range,
        "Reshape": _reshape,
        "Resize": _resize,
        "SequenceAt": _sequence_at,
        "SequenceEmpty": _sequence_empty,
        "Shape": _shape,
        "Slice": _slice,
        "SpaceToDepth": _space_to_depth,
        "Squeeze": _squeeze,
        "STFT": _stft,
        "Tile": _tile,
        "Unsqueeze": _unsqueeze,
        "Upsample": _resize,
    },
    "com.microsoft": FUSED,
    BLOCKS: {
        **ON_IMAGES,
        "ReorderInput": _into_blocks,
        "ReorderOutput": _out_of_blocks,
        "Upsample": _upsample_blocks,
    },
    "onnx_ops": {"Im2Col": _im2col},
}
