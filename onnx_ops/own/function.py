"""The declaration of an operator that is a function on whole arrays."""

import itertools
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from operator import index

import numpy as np

from .. import dtypes
from ..declaration import ABSENT, KINDS, MAX_RANK, REFUSAL, Declaration, words
from ..errors import OpError, named, require
from ..kernels.records import VECTOR, attribute_words

PARAMETERS = words({**REFUSAL, "kernel": None})  # what those of functions begin with, before the attributes' block
log = logging.getLogger("onnx_ops")


@dataclass(frozen=True, eq=False, kw_only=True)
class Function(Declaration):
    """An operator that is computed by a function on whole arrays.

    body       (*arrays, **attributes) -> outputs, in NumPy. An optional input that isn't there is None
    rule       (*shapes, **attributes) -> the outputs' shapes, a tuple of numbers or of such tuples; None: the body
               decides. Of an input with `values` it gets these
    is_bound   whether the lengths of the first axes that the rule states are the largest that there can be
    kernel     (*arrays, *attributes, index, count, workspace, *outputs), compiled; None: the body computes it. With
               is_bound it returns the length of the outputs' first axes, or a tuple of these
    loop       (*shapes, **attributes) -> how many steps the kernel's tiles share, or None: there is one tile
    workspace  (*shapes, **attributes) -> bytes for each tile that runs, or None
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
    geometry_dtype = words({**REFUSAL, "tiles": None, "workspace": None, "rank": None, "shape": MAX_RANK})

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
        """The ranks of the inputs for which this kernel is compiled."""
        return next(itertools.islice(self._combinations(), position, None))

    def position(self, ranks):
        """That of the combination, or None if the kernel isn't compiled for these ranks."""
        if not self.is_compiled or len(ranks) != len(self.inputs):
            return None
        return {known: k for k, known in enumerate(self._combinations())}.get(tuple(ranks))

    @property
    def tensors(self):
        """Positions of the inputs that kernels read."""
        return tuple(range(len(self.inputs)))

    def storage(self, position, signature):
        """The dtypes that the kernel sees, of its inputs, then of the outputs; None where one is of strings."""
        found = [dtypes.TABLE[signature[each.type]] for each in (*self.inputs, *self.outputs)]
        if any(t.name == "string" for t in found):
            return None
        return tuple(np.dtype(np.float32) if t.storage.names else t.numpy for t in found)

    def resolved(self, given):
        """The parameters from the attributes that are given: a header, and the block of their values (records.py)."""
        vectors = self.vectors(given)
        table, values = np.zeros(len(vectors), VECTOR), []
        end = table.nbytes
        for k, (attribute, vector) in enumerate(zip(self.attributes, vectors, strict=True)):
            table[k] = -1 if vector is None else vector.size, end
            if vector is not None:
                values.append(attribute_words(attribute, vector))
                end += values[-1].nbytes
        block = np.concatenate([table.view(np.int64), *values])
        parameters = np.zeros(1, [*PARAMETERS.descr, ("block", np.int64, (block.size,))])
        parameters["block"] = block
        return parameters

    def attributes_in(self, content):
        """{attribute: its value} from the bytes of parameters."""
        found = {}
        for k, attribute in enumerate(self.attributes):
            count, offset = struct.unpack_from("2q", content, PARAMETERS.itemsize + k * VECTOR.itemsize)
            at = PARAMETERS.itemsize + offset
            found[attribute.name] = None if count < 0 else attribute_value(attribute, content, at, count)
        return found

    def shapes(self, seen, attributes):
        """The shapes of the outputs by the rule, which gets what it does of each input; None if there is no rule."""
        if self.rule is None:
            return None
        with named(self):
            found = self.guarded(self.rule, seen, attributes)
            try:
                shapes = [tuple(map(index, s)) for s in ((found,) if is_shape(found) else found)]
            except TypeError:
                shapes = []
            count = len(self.outputs)
            rule = "must return a tuple of integers" + (f", for each of the {count} outputs" if count > 1 else "")
            require(len(shapes) == count, "rule", f"a function that returns {found!r}", rule)
            return shapes

    def output_shapes(self, parameters, shapes, values):
        """The shapes of the outputs by the rule, None where it isn't told all, or if there is none."""
        inputs = self.each_input(len(shapes))
        seen = [v if i.values else s for i, s, v in zip(inputs, shapes, values, strict=True)]
        known = all(each is not None and all(isinstance(n, int) for n in each) for each in seen)
        if parameters is None or self.is_bound or not known:
            return None
        seen = self.padded([tuple(each) for each in seen])
        return self.shapes(seen, self.attributes_in(parameters.tobytes()))

    def guarded(self, function, positional, keywords):
        """What a function of the user's returns. What it raises becomes an OpError, unless it is one."""
        try:
            return function(*positional, **keywords)
        except OpError:
            raise
        except Exception as error:
            log.debug("%s", self.title, exc_info=True)
            raise OpError(None, None, f"{type(error).__name__}: {error}", self.title) from error

    def computed(self, arrays, attributes, kinds):
        """The outputs of the body, which are of these NumPy types and of the rule's shapes; else it raises OpError.

        arrays  None for an input that isn't there
        """
        shapes = None
        if self.rule is not None:
            pairs = zip(self.each_input(len(arrays)), arrays, strict=True)
            seen = [None if a is None else a.tolist() if i.values else a.shape for i, a in pairs]
            shapes = self.shapes(seen, attributes)
        with named(self):
            found = self.guarded(self.body, arrays, attributes)
            found = found if isinstance(found, tuple) else (found,)
            require(len(found) == len(kinds), "outputs", len(found), f"must be {len(kinds)}, as declared")
            return [self._checked(k, found[k], kind, shapes and shapes[k]) for k, kind in enumerate(kinds)]

    def _checked(self, k, value, kind, shape):
        """What the body has returned for output k, as an array."""
        array = value if isinstance(value, np.ndarray) else self.guarded(np.asarray, [value], {})
        if array.dtype == kind and array.ndim <= MAX_RANK and (shape is None or array.shape == shape):
            return array
        name = self.outputs[k].name
        if kind.hasobject and dtypes.name_of(array) == "string":
            array = array.astype(object)
        elif isinstance(value, int | float):  # whose own type says nothing
            array = array.astype(kind)
        wanted = "string" if kind.hasobject else kind.name
        require(array.dtype == kind, f"dtype of {name}", str(array.dtype), f"must be {wanted}")
        require(array.ndim <= MAX_RANK, f"rank of {name}", array.ndim, "must be at most", MAX_RANK)
        if shape is not None:
            same = array.ndim == len(shape) and array.shape[1:] == shape[1:]
            fits = array.shape == shape or (self.is_bound and same and array.shape[:1] <= shape[:1])
            rule = f"must be {'at most ' if self.is_bound else ''}what the rule says:"
            require(fits, f"shape of {name}", list(array.shape), f"{rule} {list(shape)}")
        return array

    def kinds(self, signature):
        """NumPy's types of the outputs."""
        return tuple(dtypes.TABLE[signature[o.type]].numpy for o in self.outputs)


def is_shape(value):
    """Whether something is one shape, not a tuple of them."""
    return isinstance(value, tuple | list) and not any(isinstance(each, tuple | list) for each in value)


def attribute_value(attribute, content, at, count):
    """An attribute's value, of so many numbers or bytes, from what stands at a place of a block."""
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
