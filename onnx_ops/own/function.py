"""Function, the declaration of an operator that is computed by a function on whole arrays."""

import itertools
import logging
import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from pathlib import Path

import numpy as np

from .. import dtypes
from ..compiler.records import VECTOR, attribute_content
from ..declaration import ABSENT, KINDS, MAX_RANK, REFUSAL, Declaration, record_dtype
from ..errors import OpError, errors_of, reason, require

PARAMETERS = record_dtype({**REFUSAL, "kernel_index": None})  # the parameters' header, before the attributes' block
PACKAGE = str(Path(__file__).parent.parent)
log = logging.getLogger("onnx_ops")


@dataclass(frozen=True, eq=False, kw_only=True)
class Function(Declaration):
    """An operator that is computed by a function on whole arrays.

    body       (*arrays, **attributes) -> outputs, in NumPy. An optional input that isn't there is None
    rule       (*shapes, **attributes) -> the outputs' shapes, a tuple of numbers or of such tuples. For an input with
               `values` it gets the values in place of the shape. None: the body decides on the shapes
    is_bound   whether the first axes may turn out shorter than the rule states
    kernel     (*arrays, *attributes, index, count, workspace, *outputs), compiled. With is_bound it returns the length
               of the outputs' first axes, or a tuple of these. None: the body computes the outputs
    loop       (*shapes, **attributes) -> how many steps the kernel's tiles share. None: there is one tile
    workspace  (*shapes, **attributes) -> bytes of workspace for each tile that runs. None: there is no workspace
    """

    body: Callable
    rule: Callable | None = None
    is_bound: bool = False
    kernel: Callable | None = None
    loop: Callable | None = None
    workspace: Callable | None = None

    is_function = True
    kernels = ()

    @property
    def source(self):
        return self.body.__module__

    @property
    def has_loop(self):
        return self.loop is not None

    @property
    def has_rule(self):
        return self.rule is not None

    @property
    def is_compiled(self):
        return self.kernel is not None

    parameters_dtype = PARAMETERS
    geometry_dtype = record_dtype({**REFUSAL, "tiles": None, "workspace": None, "rank": None, "shape": MAX_RANK})

    def compiled_ranks(self, input):
        if not self.is_compiled:
            return ()
        ranks = (1,) if input.values else input.ranks or (1,)
        return (*ranks, *([ABSENT] if input.presence == "optional" else []))

    def combinations(self):
        return len(list(self._combinations())) if self.is_compiled else 0

    def _combinations(self):
        return itertools.product(*map(self.compiled_ranks, self.inputs))

    def combination(self, position):
        """Return the ranks of the inputs for which the kernel at this position is compiled."""
        return next(itertools.islice(self._combinations(), position, None))

    def position(self, ranks):
        """Return the position of a combination of ranks, or None if no kernel is compiled for it."""
        if not self.is_compiled or len(ranks) != len(self.inputs):
            return None
        return {combination: k for k, combination in enumerate(self._combinations())}.get(tuple(ranks))

    @property
    def tensors(self):
        """The positions of the inputs that kernels read."""
        return tuple(range(len(self.inputs)))

    def storage(self, position, signature):
        """Return the dtypes that the kernel sees, of inputs, then of outputs; None if one of them holds strings."""
        types = [dtypes.TABLE[signature[each.type]] for each in (*self.inputs, *self.outputs)]
        if any(t.name == "string" for t in types):
            return None
        return tuple(np.dtype(np.float32) if t.storage.names else t.numpy for t in types)

    def resolved(self, given):
        """Return the parameters for the given attributes: a header, and the block of their values (records.py)."""
        vectors = self.vectors(given)
        table, values = np.zeros(len(vectors), VECTOR), []
        end = table.nbytes
        for k, (attribute, vector) in enumerate(zip(self.attributes, vectors, strict=True)):
            table[k] = -1 if vector is None else vector.size, end
            if vector is not None:
                values.append(attribute_content(attribute, vector))
                end += values[-1].nbytes
        block = np.concatenate([table.view(np.int64), *values])
        parameters = np.zeros(1, [*PARAMETERS.descr, ("block", np.int64, (block.size,))])
        parameters["block"] = block
        return parameters

    def attributes_in(self, content):
        """Return {attribute: its value} from the bytes of parameters."""
        values = {}
        for k, attribute in enumerate(self.attributes):
            count, offset = struct.unpack_from("2q", content, PARAMETERS.itemsize + k * VECTOR.itemsize)
            at = PARAMETERS.itemsize + offset
            values[attribute.name] = None if count < 0 else attribute_value(attribute, content, at, count)
        return values

    def shapes(self, rule_inputs, attributes):
        """Return the shapes of the outputs by the rule; None if there is no rule.

        rule_inputs  for each input its shape, or its values if the rule gets these
        """
        with errors_of(self):
            return self._shapes(rule_inputs, attributes)

    def _shapes(self, rule_inputs, attributes):
        if self.rule is None:
            return None
        returned = self.call_user_function(self.rule, rule_inputs, attributes)
        try:
            shapes = [tuple(map(index, s)) for s in ((returned,) if is_shape(returned) else returned)]
        except TypeError:
            shapes = []
        if len(shapes) != len(self.outputs):
            rule = "must return a tuple of integers" + (", for each of the outputs" if len(self.outputs) > 1 else "")
            require(False, "rule", f"a function that returns {returned!r}", rule)
        return shapes

    def output_shapes(self, parameters, shapes, values):
        """Return the shapes of the outputs by the rule; None if there is no rule, or not all that it needs is known."""
        inputs = self.each_input(len(shapes))
        rule_inputs = [v if i.values else s for i, s, v in zip(inputs, shapes, values, strict=True)]
        is_known = all(each is not None and all(isinstance(n, int) for n in each) for each in rule_inputs)
        if parameters is None or self.is_bound or not is_known:
            return None
        rule_inputs = self.padded([tuple(each) for each in rule_inputs])
        return self.shapes(rule_inputs, self.attributes_in(parameters.tobytes()))

    def call_user_function(self, function, positional, keywords):
        """Call a function of the user's; returns its result. What it raises becomes an OpError, unless it is one."""
        try:
            return function(*positional, **keywords)
        except OpError:
            raise
        except Exception as error:
            if log.isEnabledFor(logging.DEBUG):  # as text, since a record would hold the arrays
                log.debug("%s\n%s", self.title, traceback.format_exc())
            raise OpError(None, None, reason(error) + place_of(error), self.title) from error

    def computed(self, arrays, attributes, kinds):
        """Run the body; returns its outputs. Raises OpError if they aren't of these NumPy types and the rule's shapes.

        arrays  the inputs; None is an input that isn't there
        """
        with errors_of(self):
            shapes = [None] * len(kinds)
            if self.rule is not None:
                pairs = zip(self.each_input(len(arrays)), arrays, strict=True)
                rule_inputs = [None if a is None else tuple(a.tolist()) if i.values else a.shape for i, a in pairs]
                shapes = self._shapes(rule_inputs, attributes)
            outputs = self.call_user_function(self.body, arrays, attributes)
            if outputs is None:
                require(False, "outputs", None, "must be returned: an array, or a tuple of several")
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            if len(outputs) != len(kinds):
                require(False, "outputs", len(outputs), f"must be {len(kinds)}, as declared")
            return list(map(self._check_output, range(len(kinds)), outputs, kinds, shapes))

    def _check_output(self, k, value, kind, shape):
        """Return as an array what the body returned for output k. Raises OpError if the type or the shape is wrong."""
        array = value if isinstance(value, np.ndarray) else self.call_user_function(np.asarray, [value], {})
        if array.dtype == kind != np.object_ and array.ndim <= MAX_RANK and (shape is None or array.shape == shape):
            return array
        name = self.outputs[k].name
        if kind.hasobject:
            array = array.astype(object)
            for each in array.flat:
                require(is_text(each), name, repr(each), "must be a string that has a UTF-8")
        elif is_exact(value, kind):  # NumPy's type for a number of Python's says nothing about what was meant
            array = array.astype(kind)
        type_name = "string" if kind.hasobject else kind.name
        require(array.dtype == kind, f"dtype of {name}", str(array.dtype), f"must be {type_name}")
        require(array.ndim <= MAX_RANK, f"rank of {name}", array.ndim, "must be at most", MAX_RANK)
        if shape is not None:
            same = array.ndim == len(shape) and array.shape[1:] == shape[1:]
            fits = array.shape == shape or (self.is_bound and same and array.shape[:1] <= shape[:1])
            rule = f"must be {'at most ' if self.is_bound else ''}what the rule says:"
            require(fits, f"shape of {name}", list(array.shape), f"{rule} {list(shape)}")
        return array

    def explain(self, parameters, inputs, tiles, workspace, outputs):
        """Run the kernel as plain Python, where an exception knows its line; return its text, or None."""
        vectors = self.vectors(self.attributes_in(parameters.tobytes()))
        attributes = [v if KINDS[a.kind].is_list else v[0] for a, v in zip(self.attributes, vectors, strict=True)]
        room = np.empty(workspace, np.uint8) if self.workspace else None
        try:
            for index in range(tiles):
                self.kernel(*inputs, *attributes, index, tiles, room, *outputs)
        except Exception as error:
            return reason(error) + place_of(error)
        return None

    def kinds(self, signature):
        """Return NumPy's types of the outputs."""
        return tuple(dtypes.TABLE[signature[o.type]].numpy for o in self.outputs)


def place_of(error):
    """Return the file and line of the user's own function that raised an error, as the end of a sentence; or ""."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(PACKAGE)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def is_text(value):
    """Return whether a value is a string that ONNX Runtime can hold."""
    try:
        return isinstance(value, str) and value.encode(errors="surrogateescape") is not None
    except UnicodeEncodeError:
        return False


def is_exact(value, dtype):
    """Return whether a value is a number of one of Python's types that fits this dtype; a float may be rounded."""
    if type(value) not in (bool, int, float):
        return False
    if dtype.kind in "iu":
        return type(value) is not float and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
    return dtype.kind in "fV" or (dtype.kind == "b" and type(value) is bool)


def is_shape(value):
    """Return whether a value is one shape, not a tuple of shapes."""
    return isinstance(value, tuple | list) and not (value and isinstance(value[0], tuple | list))


def attribute_value(attribute, content, at, count):
    """Return the value of an attribute that has `count` numbers or bytes from position `at` of the content on."""
    kind = attribute.kind
    if kind == "text":
        return content[at : at + count].decode(errors="surrogateescape")
    if kind == "tensor":
        number, rank = struct.unpack_from("2q", content, at)
        shape = struct.unpack_from(f"{rank}q", content, at + 16)
        dtype = next(t for t in dtypes.TABLE.values() if t.onnx == number).numpy
        return np.frombuffer(content, dtype, count, at + 16 + 8 * rank).reshape(shape)
    values = struct.unpack_from(f"{count}{'d' if kind.startswith('float') else 'q'}", content, at)
    if KINDS[kind].is_list:
        return values
    if kind == "string":
        return attribute.choices[values[0]]
    return bool(values[0]) if attribute.bounds == (0, 1) else values[0]
