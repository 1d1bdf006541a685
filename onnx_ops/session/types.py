"""The types of this room: sessions, what they run, and what is compiled for them.

Only type checkers read them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes
    import weakref
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal, TypeAlias

    import onnx

    from ..model.types import Dimension, NumpyType

    Backend: TypeAlias = Literal["native", "extensions"]
    # The latter: ONNX Runtime's built-in kernels.
    AnyBackend: TypeAlias = Backend | Literal["builtin"]
    # {name of an input or output: (data type, None unless it is a tensor; dimensions)}
    Described: TypeAlias = dict[str, tuple[str | None, Sequence[Dimension]]]
    # An execution provider of ONNX Runtime, and its options.
    Provider: TypeAlias = str | tuple[str, dict[str, Any]]
    Lowered: TypeAlias = tuple[
        onnx.ModelProto, str | None
    ]  # with the name of its additional input, if it has one

    # Of each input of a node without compiled code: whether its plan reads the values, and the type
    # of its elements
    InputTypes: TypeAlias = tuple[tuple[bool, NumpyType], ...]

    Settings: TypeAlias = Mapping[str, Any]  # of an installation, see `settings_of`

    Compiled: TypeAlias = list[
        tuple[str, str]
    ]  # (symbol, path of the object file) of a variant's functions
    Reached: TypeAlias = tuple[
        str, object
    ]  # what a variant is compiled from, to be compared between processes
    Level: TypeAlias = tuple[
        str, str | None
    ]  # the CPU and the system to compile for (`level` of compiler/target.py)
    Views: TypeAlias = dict[
        int, weakref.ref[ctypes.Array[ctypes.c_char]]
    ]  # {position of an input: its memory}
