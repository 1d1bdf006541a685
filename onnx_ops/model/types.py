"""The types of this room: models and their files, nodes, arrays. Only type checkers read them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Protocol, TypeAlias

    import numpy as np
    import onnx
    from numpy.typing import NDArray

    from ..system.files import PathLike

    File: TypeAlias = PathLike | bytes  # a model: its path, or its content
    Source: TypeAlias = File | onnx.ModelProto

    Owner: TypeAlias = onnx.GraphProto | onnx.FunctionProto  # of nodes
    # (domain, name, overload) of a model's local function
    FunctionKey: TypeAlias = tuple[str, str, str]
    Caller: TypeAlias = FunctionKey | str  # a function, or the graph, which is ""

    # (name of a module or path of its file, digest of the file)
    OperatorSource: TypeAlias = tuple[str, int | None]

    class PythonOp(Protocol):
        """An Opdef of onnxruntime-extensions, which states no types."""

        op_type: str

        def __call__(self, *inputs: Any, **attributes: Any) -> Any: ...

    NumpyType: TypeAlias = np.dtype[Any]  # NumPy's type of the elements of an array
    Array: TypeAlias = NDArray[Any]
    Arrays: TypeAlias = Mapping[str, Array]  # {name of an input or output: its value}
    # {name: (inputs, outputs)} of a node test
    DataSets: TypeAlias = dict[str, tuple[list[Array], list[Array]]]
    # As models state it: a size, the name of an open one, or nothing.
    Dimension: TypeAlias = int | str | None
