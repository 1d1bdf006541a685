"""The ways to run a model, behind one interface: arrays in by name, arrays out by name."""

from functools import partial

import onnx

import onnx_ops

from ..runtime import runner
from ..schemas import dimensions
from .values import ELEMENT_TYPES

ROUTES = ("native", "extensions", "builtin", "reference")


class Route:
    """A model, given as path or bytes, that is open in one of ROUTES.

    settings  more arguments of runner.open_session
    inputs    {name: (element type, dimensions)}; the type is None if it is no tensor, a dimension an int, name or None
    outputs   the same of the outputs; not of the route "reference"
    run       ({input: array}) -> {output: array}
    """

    def __init__(self, model, route="native", threads=None, **settings):
        if route == "reference":
            self._open_reference(model)
        else:
            self.session = runner.open_session(model, route, threads=threads, **settings)
            self.inputs, self.outputs = runner.inputs(self.session), runner.outputs(self.session)
            self.run = partial(runner.run_session, self.session)

    def _open_reference(self, model):
        from onnx.reference import ReferenceEvaluator

        proto = onnx.ModelProto.FromString(model) if isinstance(model, bytes) else onnx.load(model)
        evaluator = ReferenceEvaluator(proto, new_ops=onnx_ops.reference_ops())
        outputs = [o.name for o in proto.graph.output]
        constants = {t.name for t in proto.graph.initializer}
        self.inputs = {
            i.name: (ELEMENT_TYPES.get(i.type.tensor_type.elem_type), dimensions(i.type) or [])
            for i in proto.graph.input
            if i.name not in constants
        }
        self.run = lambda feeds: dict(zip(outputs, evaluator.run(None, feeds), strict=True))
