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
    # With the name of its additional input, if it has one.
    Lowered: TypeAlias = tuple[onnx.ModelProto, str | None]

    # (message, arguments of the OpError) on its way from C
    Report: TypeAlias = tuple[str, tuple[str | None, str | None, str, str | None]]

    # Of each input of a node without compiled code: whether its plan reads the values, and the type
    # of its elements
    InputTypes: TypeAlias = tuple[tuple[bool, NumpyType], ...]

    Settings: TypeAlias = Mapping[str, Any]  # of an installation, see `settings_of`

    # (symbol, path of the object file) of a variant's functions
    Compiled: TypeAlias = list[tuple[str, str]]
    # What a variant is compiled from, to be compared between processes.
    Reached: TypeAlias = tuple[str, object]
    # The CPU and the system to compile for (`level` of compiler/target.py).
    Level: TypeAlias = tuple[str, str | None]
    # {position of an input: its memory}
    Views: TypeAlias = dict[int, weakref.ref[ctypes.Array[ctypes.c_char]]]
