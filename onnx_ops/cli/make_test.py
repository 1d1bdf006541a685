"""`onnx-ops make-test`: write a node test for an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import numpy as np
from click import UsageError
from onnx.defs import onnx_opset_version

from ..declaration import dtypes
from ..declaration.calls import compute_reference
from ..declaration.errors import OpError, errors_of
from ..model import node_tests
from ..model.small_models import node_of
from ..registry import available
from . import data
from .arguments import TARGET_FOLDER, check_targets
from .console import say

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from ..declaration.operator import Operator
    from ..model.types import Array
    from ..session.types import Described
    from .types import Feeds


def operator_of(context: click.Context, parameter: click.Parameter, text: str) -> Operator:
    """Return the operator with this title, or else the only one with this name."""
    every = available().values()
    matches = [o for o in every if o.title == text] or [o for o in every if o.name == text]
    if len(matches) != 1:
        raise click.BadParameter(
            f"{text!r} must be one of {', '.join(o.title for o in matches or every)}."
        )
    return matches[0]


@click.command()
@click.option(
    "--op", "operator", required=True, metavar="[DOMAIN.]NAME", callback=operator_of,
    help="The operator; without a domain, that of ai.onnx or of the only domain that has it.",
)  # fmt: skip
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE...",
    help="Attributes: numbers, texts, lists as 1,2.",
)
@data.shape_option
@data.input_option
@click.option(
    "--dtype", type=click.Choice(list(dtypes.TABLE)), metavar="TYPE", default="float32",
    help="Data type of the first input, and of others that support it.",
)  # fmt: skip
@click.option(
    "--opset",
    type=int,
    help="Version of the operator's domain.  [default: the last that changed it]",
)
@click.option("--seed", type=int, default=0, help="Seed of the random inputs.")
@click.argument("further_settings", metavar="[NAME=VALUE]...", nargs=-1)  # further values of --set
@click.argument("folder", type=TARGET_FOLDER)
def make_test(
    operator: Operator,
    settings: tuple[str, ...],
    shapes: tuple[str, ...],
    input_texts: tuple[str, ...],
    dtype: str,
    opset: int | None,
    seed: int,
    further_settings: tuple[str, ...],
    folder: Path,
) -> None:
    """Write a node test for an operator into FOLDER, in the layout of onnx's node tests.

    The test is a model of one node, inputs and expected outputs: model.onnx,
    test_data_set_0/input_0.pb, output_0.pb and so on. This package's reference of the operator
    computes the outputs, in float64 for floats. Inputs with a --shape are random, in a range that
    suits the operator. Inputs that are sizes need an --input.

    \b
    Examples:
      onnx-ops make-test --op GridSample --set mode=cubic padding_mode=border
                         --shape X=1,3,8,8 --shape Grid=1,5,5,2 tests/grid_sample
      onnx-ops make-test --op Col2Im --set pads=1,1,1,1 --shape input=1,18,16
                         --input image_shape=[4,4] --input block_shape=[3,3] tests/col2im
      onnx-ops validate tests/
    """
    version = operator.versions[-1] if opset is None else opset
    if version < operator.versions[0]:
        raise UsageError(
            f"--opset {version}: {operator.title} needs at least {operator.versions[0]}."
        )
    if not operator.domain and version > onnx_opset_version():
        raise UsageError(f"--opset {version}: the newest one of onnx is {onnx_opset_version()}.")
    try:
        with errors_of(operator):
            attributes = read_attributes(operator, [*settings, *further_settings])
            inputs = make_inputs(operator, attributes, shapes, input_texts, dtype, seed)
            values = operator.values(attributes)
            arrays = compute_reference(
                operator, values, [inputs.get(i.name) for i in operator.inputs]
            )
    except OpError as error:
        raise UsageError(str(error)) from error
    outputs = {o.name: array for o, array in zip(operator.outputs, arrays, strict=True)}
    check_folder(folder, node_tests.files(folder, inputs, outputs), input_texts)
    node = node_of(operator, input_names(operator, inputs), attributes)
    node_tests.save(
        folder,
        node_tests.test_model(operator.name, node, version, inputs, outputs),
        inputs,
        outputs,
    )
    say(f"{folder} is a test of {operator.title} {version}; onnx-ops validate {folder} runs it")


def input_names(operator: Operator, inputs: Collection[str]) -> list[str]:
    """Return the names of a node's inputs, "" for an absent one before others."""
    names = [i.name if i.name in inputs else "" for i in operator.inputs]
    while not names[-1]:
        names.pop()
    return names


def read_attributes(operator: Operator, settings: Sequence[str]) -> dict[str, Any]:
    """Return {attribute: value} for the options --set.

    A value is a text, JSON, or the elements of a list.
    """
    texts = {name for a in operator.attributes if a.kind in ("string", "text") for name in a.names}
    attributes: dict[str, Any] = {}
    for text in settings:
        name, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"--set {text}: must be like NAME=VALUE.")
        contents = () if name in texts else (data.as_json(value), data.as_json(f"[{value}]"))
        content = next((content for content in contents if content is not None), value)
        attributes = data.join(attributes, {name: content}, f"--set {text}")
    by_name = operator.values(attributes).by_name
    return {
        a.name: by_name[a.name] for a in operator.attributes if attributes.keys() & set(a.names)
    }


def make_inputs(
    operator: Operator,
    attributes: Mapping[str, Any],
    shapes: Sequence[str],
    input_texts: Sequence[str],
    dtype: str,
    seed: int,
) -> Feeds:
    """Return {input: array}: those of --input, and random ones of --shape."""
    types = {
        v: next(n for n in (dtype, "float32", *names) if n in names)
        for v, names in operator.types.items()
    }
    types[operator.inputs[0].type] = dtype
    declared: Described = {i.name: (types[i.type], [None] * 4) for i in operator.inputs}
    arrays = data.read_inputs([spelled(text, declared) for text in input_texts], declared)
    sizes = data.stated_sizes([spelled(text, declared) for text in shapes], declared, arrays)
    rng = np.random.default_rng(seed)
    inputs: Feeds = {}
    for i in operator.inputs:
        if i.name in arrays:
            inputs[i.name] = arrays[i.name]
        elif i.name in sizes and not i.values:
            array = data.random_array(rng, i.name, *declared[i.name], sizes[i.name])
            image = next(iter(inputs.values()), array).shape
            inputs[i.name] = in_range(
                i.name, array, image, attributes.get("spatial_scale", 1)
            ).astype(array.dtype)
        elif i.presence != "optional":
            option = f"--input {i.name}=[...]" if i.values else f"--shape {i.name}=N,C,..."
            raise UsageError(
                f"no {option} for {operator.title}, with the inputs {', '.join(declared)}."
            )
    return inputs


def spelled(text: str, names: Mapping[str, Any]) -> str:
    """Return NAME=VALUE with the name as the operator has it; it may be given in other case."""
    written, separator, value = text.partition("=")
    name = next(
        (n for n in (written, *names) if n in names and n.lower() == written.lower()), written
    )
    return f"{name}{separator}{value}"


def in_range(name: str, array: Array, image: tuple[int, ...], scale: float) -> Array:
    """Return random numbers in the range of the input with this name.

    Some points lie outside of the image.

    array  numbers from -1 to 1, or integers
    image  shape of the first input
    scale  size of a unit of regions, in pixels
    """
    match name.lower():
        case "grid":
            return array * 1.2
        case "sampling_locations":
            return array * 0.6 + 0.5
        case "batch_indices":
            return array % image[0]
        case "rois" | "boxes":
            # The first corner is less than the second one. An image's index may be before both.
            regions = np.sort(np.abs(array)) * (min(image[2:4], default=10) / scale)
            if name == "rois" and array.shape[-1] > 4:
                regions[..., 0] = np.abs(array[..., 0]) * image[0] // 1
            return regions
    return array


def check_folder(folder: Path, files: Iterable[Path], input_texts: Sequence[str]) -> None:
    """Raise an error if a file of FOLDER is read, or would stay as a part of the new test."""
    check_targets([folder / "model.onnx", *files], data.input_files(input_texts))
    if leftovers := sorted({*folder.glob("test_data_set_*/*.pb")} - {*files}):
        raise UsageError(
            f"{folder} has {leftovers[0].name} of another test; choose another folder."
        )
