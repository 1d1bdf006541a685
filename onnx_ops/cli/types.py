"""The types of this room: reports, arrays by name, and what commands measure.

Only type checkers read them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any, Literal, TypeAlias, TypedDict

    import onnx

    from ..model.types import Array, Dimension

    Report: TypeAlias = dict[str, Any]  # as --json prints it
    # What outputs depend on, as the command line or a file states them.
    Settings: TypeAlias = dict[str, Any]
    # Of `onnx-ops bench` to run a model: (title, arguments of a Runner).
    Way: TypeAlias = tuple[str, Settings]
    Feeds: TypeAlias = dict[str, Array]  # {name of an input or output: its value}
    # {data type: allowed difference, relative to the largest value}
    Tolerances: TypeAlias = Mapping[str, float]
    # What `onnx-ops run --compare` compares with.
    Other: TypeAlias = Literal["builtin", "reference"] | Path

    class Stated(TypedDict):
        """What a model states of a node's input. None for unknown parts."""

        name: str
        type: str | None
        shape: list[Dimension] | None

    # A suggested operator.
    Shape: TypeAlias = Sequence[Any]  # sizes, names and None; patterns compute with the sizes
    Attributes: TypeAlias = Mapping[str, onnx.AttributeProto]  # of a node, by their names
    Suggestion: TypeAlias = tuple[Sequence[str], str] | None  # (names of the inputs, call)

    # A model in the layout of onnx's node tests: (name, model, function that returns its data)
    Test: TypeAlias = tuple[str, Path | bytes, Callable[[], dict[Any, Any]]]
    # (folder of the data, inputs) -> outputs
    Compute: TypeAlias = Callable[[str, list[Array]], Feeds]

    # Of `onnx-ops demo`: (title, model, inputs).
    Example: TypeAlias = tuple[str, onnx.ModelProto, Feeds]
    Event: TypeAlias = dict[str, Any]  # of ONNX Runtime's profiler

    class Share(TypedDict):
        """The time of a type of operator."""

        operator: str
        seconds: float  # of its nodes in a run
        share: float  # of the time of all nodes
