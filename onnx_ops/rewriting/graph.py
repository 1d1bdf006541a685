"""A model's graphs, as patterns look at them and change them.

Names are looked up through the graphs around a subgraph. A change overwrites one node and takes away what nobody uses
any more because of it; everything else stays where it is.
"""

from collections import Counter, defaultdict
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from onnx import FunctionProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import uses_external_data

from ..inference import inferred
from ..nodes import subgraphs, value_names

AI_ONNX = ("", "ai.onnx")
DEEPEST = 60  # nodes, one after the other, that compute a constant
RANDOM = {"Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike"}  # other results each run


class Model:
    """What all graphs of a model share. folder: where its external data are, if that is known."""

    def __init__(self, proto, folder=None):
        self.proto, self.folder = proto, folder

    def graphs(self):
        """All of them, from the outside in. They may be changed while they are gone through."""
        for owner, title in [(self.proto.graph, "main"), *((f, f"function {f.name}") for f in self.proto.functions)]:
            yield from Graph(self, owner, title).nested()

    @cached_property
    def names(self):
        """Of all values, those that were added included."""
        return {name for owner in (self.proto.graph, *self.proto.functions) for name in value_names(owner)}

    def new_name(self, like):
        """A name that no value has, and which is taken from then on."""
        numbered = (f"{like}_{k}" for k in range(len(self.names) + 1))
        name = next(name for name in (like, *numbered) if name not in self.names)
        self.names.add(name)
        return name

    @cached_property
    def inferred(self):
        """{value: its type}, as far as onnx can tell; of the main graph."""
        return {value.name: value.type for value in inferred(self.proto, values=True).graph.value_info}

    def import_domain(self, owner, domain, version):
        """Let a function, or the model, import a domain."""
        owner = owner if isinstance(owner, FunctionProto) else self.proto
        if all(known.domain != domain for known in owner.opset_import):
            owner.opset_import.append(helper.make_opsetid(domain, version))


class Graph:
    """One graph, or the body of a local function.

    outer      the graph around a subgraph
    producers  {value: the node that makes it}
    users      {value: how often nodes, those in subgraphs included, take it, or the graph hands it out}
    """

    def __init__(self, model, owner, title, outer=None):
        self.model, self.owner, self.title, self.outer = model, owner, title, outer
        self.is_function = isinstance(owner, FunctionProto)
        self.function = owner if self.is_function else outer.function if outer else None
        self.producers = {name: node for node in owner.node for name in node.output if name}
        self.users = _users(owner)
        values = () if self.is_function else (*owner.input, *owner.output)
        self.types = {value.name: value.type for value in (*owner.value_info, *values)}
        self.inputs = set(owner.input if self.is_function else (value.name for value in owner.input))
        tensors = () if self.is_function else owner.initializer
        self.initializers = {tensor.name: tensor for tensor in tensors}
        self.known = {}  # what has been worked out of integers: see integers.py
        self.constants = {}  # what has been computed

    def nested(self):
        """This one, then those inside of it."""
        yield self
        for node in list(self.owner.node):
            for inner in subgraphs(node):
                title = f"{self.title}, {node.op_type} {node.name or node.output[0]}"
                yield from Graph(self.model, inner, title, self).nested()

    @property
    def is_main(self):
        return self.outer is None and not self.is_function

    @property
    def opset(self):
        """The version of ai.onnx."""
        imports = (self.function or self.model.proto).opset_import
        return next((i.version for i in imports if i.domain in AI_ONNX), 0)

    def home(self, name):
        """The graph, of this one and those around it, in which a value is made; None if it is in none of them."""
        graph = self
        while graph and not (name in graph.producers or name in graph.initializers or name in graph.inputs):
            graph = graph.outer
        return graph

    def producer(self, name, *op_types):
        """The node of ai.onnx in this graph that makes a value, if it is of one of these types, or none is given.

        None also where the node hasn't the inputs and attributes of its operator, which its session will tell.
        """
        node = self.producers.get(name)
        known = node is not None and node.domain in AI_ONNX and (node.op_type in op_types or not op_types)
        return node if known and self.is_sound(node) else None

    def is_sound(self, node):
        """Whether a node has the inputs, outputs and attributes of its operator."""
        context = onnx.checker.C.CheckerContext()
        context.ir_version = self.model.proto.ir_version
        imports = (self.function or self.model.proto).opset_import
        context.opset_imports = {**{i.domain: i.version for i in imports}, **dict.fromkeys(AI_ONNX, self.opset)}
        try:
            onnx.checker.check_node(node, context)
        except onnx.checker.ValidationError:
            return False
        return True

    def type(self, name):
        """A value's TypeProto, or None."""
        graph = self.home(name) or self
        if name in graph.types:
            return graph.types[name]
        return self.model.inferred.get(name) if graph.is_main else None

    def array(self, name):
        """The value of a constant as an array, or None. What lies in a file is read if the model's folder is known."""
        graph = self.home(name)
        if graph is None or (name in graph.inputs and name in graph.initializers):  # a default, which a caller replaces
            return None
        tensor = graph.initializers.get(name)
        if tensor is not None:
            return self._read(tensor)
        node = graph.producer(name, "Constant")
        if node is None or len(node.attribute) != 1 or node.attribute[0].ref_attr_name:
            return None
        value = helper.get_attribute_value(node.attribute[0])
        if isinstance(value, TensorProto):
            return self._read(value)
        kind = {"value_int": "int64", "value_ints": "int64", "value_float": "float32", "value_floats": "float32"}
        kind = kind.get(node.attribute[0].name)
        return np.asarray(value, kind) if kind else None

    def _read(self, tensor):
        if uses_external_data(tensor):
            if self.model.folder is None:
                return None
            tensor = TensorProto.FromString(tensor.SerializeToString())  # for some versions of onnx to load it into
        try:
            return numpy_helper.to_array(tensor, str(Path(self.model.folder or "")))
        except (OSError, ValueError, TypeError, onnx.checker.ValidationError):  # as its session will tell
            return None

    def computed(self, name, depth=DEEPEST):
        """`array`, also of what nodes compute from constants alone."""
        graph = self.home(name)
        if graph is None or depth == 0:
            return None
        if name not in graph.constants:
            array = graph.array(name)
            graph.constants[name] = graph._evaluated(name, depth) if array is None else array
        return graph.constants[name]

    def _evaluated(self, name, depth):
        from onnx.reference import ReferenceEvaluator

        node = self.producer(name)
        if node is None or node.op_type in RANDOM or not node.input or any(subgraphs(node)):
            return None
        given = {}
        for taken in filter(None, node.input):
            given[taken] = self.computed(taken, depth - 1)
            if given[taken] is None:
                return None
        outputs = list(map(helper.make_empty_tensor_value_info, node.output))
        try:
            kinds = {taken: helper.np_dtype_to_tensor_dtype(array.dtype) for taken, array in given.items()}
            inputs = [helper.make_tensor_value_info(taken, kind, None) for taken, kind in kinds.items()]
            body = helper.make_graph([node], "constant", inputs, outputs)
            imports, version = [helper.make_opsetid("", self.opset)], self.model.proto.ir_version
            proto = helper.make_model(body, opset_imports=imports, ir_version=version)
            array = ReferenceEvaluator(proto).run(None, given)[list(node.output).index(name)]
            # Of many operators ONNX Runtime's results have other bits.
            return _by_onnx_runtime(proto, given, name) if array.dtype.kind == "f" else array
        except Exception:  # of an operator that refuses it, or that it doesn't have
            return None

    def is_constant(self, name):
        """Whether a value is the same in every run: it is a constant, or computed of nothing else."""
        names, seen = [name], set()
        while names:
            name = names.pop()
            graph = self.home(name)
            if graph is None or name in graph.inputs:
                return False
            node = graph.producers.get(name)
            if node is not None and id(node) not in seen:
                seen.add(id(node))
                if node.op_type in RANDOM or any(subgraphs(node)) or not (node.input or node.op_type == "Constant"):
                    return False
                names += [given for given in node.input if given]
        return True

    def consumers(self):
        """{value: [(node, position) wherever this graph's own nodes take it]}"""
        found = defaultdict(list)
        for node in self.owner.node:
            for position, name in enumerate(node.input):
                found[name].append((node, position))
        return found

    def add_constant(self, like, array):
        """The name of a new constant."""
        tensor = numpy_helper.from_array(array, self.model.new_name(like))
        if self.is_function:
            node = helper.make_node("Constant", [], [tensor.name], value=tensor)
            self.owner.node.insert(0, node)
            self.producers[tensor.name] = self.owner.node[0]
        else:
            self.owner.initializer.append(tensor)
            self.initializers[tensor.name] = self.owner.initializer[-1]
        return tensor.name

    def add_node(self, before, op_type, inputs, domain="", version=1, **attributes):
        """The output's name of a new node, which comes before another one and has a name like that one's."""
        output = self.model.new_name(f"{before.output[0]}_{op_type}")
        node = helper.make_node(op_type, inputs, [output], before.name and output, domain=domain, **attributes)
        at = next(k for k, other in enumerate(self.owner.node) if other.output == before.output)
        self.owner.node.insert(at, node)
        self.producers[output] = self.owner.node[at]
        self._import(domain, version)
        for name in inputs:
            self._count(name, 1)
        return output

    def replace(self, node, op_type, inputs, domain="", version=1, before=False, **attributes):
        """Let another node give what a node gives, or, with `before`, what a node takes as its first input.

        What is then used by nobody is taken away.
        """
        obsolete = [name for name in node.input if name][: 1 if before else None]
        if before:
            node.input[0] = self.add_node(node, op_type, inputs, domain, version, **attributes)
            self._count(node.input[0], 1)
        else:
            new = helper.make_node(op_type, inputs, node.output, node.name, node.doc_string, domain, **attributes)
            new.metadata_props.extend(node.metadata_props)
            node.CopyFrom(new)
            self._import(domain, version)
            for name in inputs:
                self._count(name, 1)
        for name in obsolete:
            self._count(name, -1)
        self._sweep(obsolete)

    def _import(self, domain, version):
        if domain not in AI_ONNX:
            self.model.import_domain(self.function, domain, version)

    def _count(self, name, change):
        graph = self
        while graph:
            graph.users[name] += change
            graph = graph.outer if graph is not graph.home(name) else None

    def _sweep(self, names):
        """Take away what makes these values and others that only those needed."""
        while names:
            name = names.pop()
            graph = self.home(name)
            if graph is None or graph.users[name] > 0:
                continue
            if name in graph.initializers and name not in graph.inputs:
                graph.owner.initializer.remove(graph.initializers.pop(name))
            node = graph.producers.get(name)
            if node is None or any(graph.users[made] > 0 for made in node.output) or any(subgraphs(node)):
                continue
            for made in node.output:
                graph.producers.pop(made, None)
                graph._forget(made)
            given = [taken for taken in node.input if taken]
            graph.owner.node.remove(node)
            for taken in given:
                graph._count(taken, -1)
            names += given

    def _forget(self, name):
        described = next((value for value in self.owner.value_info if value.name == name), None)
        if described is not None:
            self.owner.value_info.remove(described)


def _by_onnx_runtime(proto, given, name):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run([name], given)[0]


def _users(owner):
    users = Counter(owner.output if isinstance(owner, FunctionProto) else (value.name for value in owner.output))
    for node in owner.node:
        users.update(name for name in node.input if name)
        for inner in subgraphs(node):
            users.update(_users(inner))
    return users
