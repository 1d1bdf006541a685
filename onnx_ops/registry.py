"""The operators of this package, and the custom operators in use.

The families' files declare those of this package in `OPERATORS`.

A process imports only the files of the operators that it needs. `OPERATORS` of this module holds
all operators.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from .declaration.errors import OpError
from .declaration.operator import Operator
from .system.locks import REGISTRATION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Protocol, TypeAlias, TypeVar

    class Declaring(Protocol):
        """What `onnx_ops.operator` returns: a CustomOperator, which this floor can't import."""

        @property
        def declaration(self) -> Operator: ...

    Operators: TypeAlias = Mapping["Key", Operator]  # such as `available` returns
    Declared: TypeAlias = Operator | Declaring  # what users pass as an operator
    T = TypeVar("T")


# {file: titles of the operators that it declares}; scripts/list_operators.py writes it.
FILES = {
    "fold.col2im": "Col2Im org.openvinotoolkit.Col2Im",
    "fold.im2col": "onnx_ops.Im2Col",
    "fold.im2col_product": "onnx_ops.Im2ColProduct",
    "sampling.computed_grid_sample": "onnx_ops.ComputedGridSample",
    "sampling.grid_sample": """
        GridSample com.microsoft.GridSample mmcv.grid_sampler mmdeploy.grid_sampler
    """,
    "detection.deform_conv": """
        DeformConv onnx_ops.DeformConv mmdeploy.MMCVModulatedDeformConv2d
        mmcv.MMCVModulatedDeformConv2d mmdeploy.MMCVDeformConv2d mmcv.MMCVDeformConv2d _DCNv2
        DCNv2 custom.DCNv2 custom.DeformConv2d
    """,
    "detection.deformable_attention": "onnx_ops.MultiScaleDeformableAttention",
    "detection.roi_align": """
        RoiAlign mmcv.MMCVRoiAlign mmdeploy.MMCVRoiAlign mmcv.MMCVRoIAlignRotated
        mmdeploy.MMCVRoIAlignRotated
    """,
    "openmmlab.rotated_feature_align": "mmcv.MMCVRotatedFeatureAlign",
    "openmmlab.running_extremes": "mmcv.cummax mmcv.cummin mmcv.MMCVCornerPool",
    "openmmlab.suppression": """
        mmdeploy.NMSRotated mmdeploy.NMSMatch mmcv.NonMaxSuppression mmcv.SoftNonMaxSuppression
    """,
}
Key = tuple[str, str]  # (domain, name) of an operator; domain "" is ai.onnx
# {key of an operator: the file that declares it}
KEYS = {
    title.rpartition(".")[::2]: file for file, titles in FILES.items() for title in titles.split()
}
DOMAINS = {domain for domain, _ in KEYS}
SHARED = "custom"  # a domain that other libraries have operators in, too
OPERATORS: tuple[Operator, ...]
_used: dict[Key, Operator] = {}  # custom operators in use in this process


class Available(Mapping[Key, Operator]):
    """{(domain, name): declaration} of this package's operators and custom ones.

    Those of this package are imported when they are looked up.

    custom  {(domain, name): declaration} of the custom ones
    """

    def __init__(self, custom: dict[Key, Operator]) -> None:
        self.custom = custom

    def __getitem__(self, key: Key) -> Operator:
        return self.custom.get(key) or built_in(key)

    def __iter__(self) -> Iterator[Key]:
        return iter(KEYS | self.custom)

    def __len__(self) -> int:
        return len(KEYS | self.custom)


@functools.cache
def built_in(key: Key) -> Operator:
    """Return the declaration of this package's operator (domain, name). Raises KeyError."""
    file = KEYS[key]
    # Else a child forked during this import might wait for the module's lock for ever.
    with REGISTRATION:
        module = import_module(f".{file}", __package__)
    return next(operator for operator in module.OPERATORS if operator.key == key)


def is_built_in(operator: Operator) -> bool:
    """Return whether an operator belongs to this package, rather than being custom."""
    return operator.key in KEYS and built_in(operator.key) is operator


def available(custom: Iterable[Declared] | Declared = ()) -> Available:
    """Return the Available of this package's operators, the custom operators in use, and `custom`.

    custom  CustomOperators or declarations. They replace operators of this package that have the
            same name

    Raises OpError if two of them have the same name.
    """
    operators = dict(_used)
    for declared in map(declaration_of, as_list(custom)):
        if is_built_in(declared):
            continue
        first = operators.setdefault(declared.key, declared)
        if first is not declared:
            sources = " and ".join(sorted({first.source, declared.source}))
            rule = f"is declared twice, in {sources}; one session can't have both"
            raise OpError("operators", declared.title, rule, "onnx_ops")
    return Available(operators)


def as_list(operators: Iterable[T | Declared] | Declared) -> list[T | Declared]:
    """Return a list of operators from an iterable or a single operator."""
    return list(operators) if isinstance(operators, Iterable) else [operators]


def declaration_of(operator: object) -> Operator:
    """Return the declaration of a CustomOperator, or a declaration itself. Raises OpError."""
    declaration = getattr(operator, "declaration", operator)
    if not isinstance(declaration, Operator):
        rule = "must be a result of onnx_ops.operator, or a declaration"
        raise OpError("operators", repr(operator), rule, "onnx_ops")
    return declaration


def is_default(domain: str, of_package: bool) -> bool:
    """Return whether an operator is registered by default, without a model and without domains.

    The custom domain com.microsoft breaks models in which ONNX Runtime fuses nodes. Other libraries
    have operators of the domain custom, too, and ONNX Runtime takes those of a domain from one
    library only.

    of_package  whether the operator belongs to this package, rather than being custom
    """
    return domain != "com.microsoft" and not (domain == SHARED and of_package)


def first_version(operator: Operator) -> int:
    """Return the first version of its domain in which sessions have the operator.

    In ai.onnx it is 1, unless a node of an older version is another operator: the exporters that
    write GridSample into models of opset 11 mean this one. A custom operator there may replace an
    older one in the versions that it states; it is registered for the version before, too. To fold
    a node whose inputs are all constant, ONNX Runtime looks for its built-in kernel by this
    version. A kernel that it found would not fit our schema, and the session would fail. Without
    one it warns that it can't fold the node, and the C library folds it.
    """
    first = operator.versions[0]
    if operator.domain or operator.has_older:
        return first
    return 1 if is_built_in(operator) else first - 1


def custom_operators() -> list[Operator]:
    """Return the custom operators in use in this process."""
    return list(_used.values())


def use(custom: Iterable[Declared]) -> None:
    """Put custom operators into use in this process. Raises OpError."""
    _used.update(available(custom).custom)


def __getattr__(name: str) -> Any:
    if name == "OPERATORS":
        return globals().setdefault(name, tuple(map(built_in, KEYS)))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
