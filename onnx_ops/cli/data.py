"""Inputs from the command line and from files, and outputs into files."""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np
from click import UsageError
from PIL import Image

from .. import OpError
from ..declaration import dtypes
from ..model.files import ordinary_file
from ..model.node_tests import read_pb
from ..system.files import staged
from .console import dimensions, one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from typing import IO, Any, TypeVar

    from ..model.types import Array, Arrays, Dimension, PathLike
    from ..session.types import Described
    from .types import Feeds, Report

    T = TypeVar("T")

IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
ENDINGS = (".npy", ".png")  # of the files of an output
# Pillow's names. For some other formats, Pillow runs another program.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
PIXELS = (*dtypes.FLOATS, "uint8")  # data types of images
MODES: dict[Dimension, str] = {1: "L", 3: "RGB", 4: "RGBA"}  # channels -> Pillow's name
unpacked = ContextVar("unpacked", default=512)  # the option --unpacked
Image.MAX_IMAGE_PIXELS = None  # Pillow's limit, which no option raises

# Where a name from a model gets a "_": before beginnings that have a meaning to a system, as
# devices of Windows have, and for characters. Members of archives may be in folders.
_BEGIN = r"(?:^|(?<=/))(?=$|[-./]|\w:|(?:con|prn|aux|nul|com\d|lpt\d)(?![^./:]))"
IN_FILE, IN_ARCHIVE = re.compile(rf"(?ai){_BEGIN}|[^-.\w]"), re.compile(rf"(?i){_BEGIN}|[^-./:\w]")
input_option = click.option(
    "--input", "-i", "input_texts", multiple=True, metavar="[NAME=]FILE",
    help="A .npy, .npz (all its arrays by name), .pb or image file, or numbers: size=[5,5]. "
    "Repeat for each input; NAME= is optional if the model has one input.",
)  # fmt: skip
shape_option = click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=N,C,...",
    help="Shape of a random input with open dimensions; may be repeated.",
)  # fmt: skip


# Inputs of a model. `inputs` is `Runner.inputs`: {name: (data type, dimensions)}


class InputOptions(NamedTuple):
    """The options that state the inputs of a run.

    texts   of the options --input
    shapes  of the options --shape
    random  whether the other inputs are random
    """

    texts: Sequence[str]
    shapes: Sequence[str]
    random: bool


def feeds(
    inputs: Described, input_texts: Iterable[str], shapes: Iterable[str], random: bool
) -> tuple[Feeds, str]:
    """Return ({input: array} from the options --input and --shape, `doubts` on random inputs)."""
    arrays = read_inputs(input_texts, inputs)
    missing = [n for n in inputs if n not in arrays]
    if not random:
        check_complete(arrays, inputs, " --random makes them up.")
    sizes = stated_sizes(shapes, inputs, arrays)
    rng = np.random.default_rng(0)
    arrays |= {n: random_array(rng, n, *inputs[n], sizes.get(n)) for n in missing}
    return {n: arrays[n] for n in inputs}, doubts({n: inputs[n] for n in missing}, sizes)


def read_inputs(input_texts: Iterable[str], inputs: Described) -> Feeds:
    """Return {input: array} for the options --input."""
    arrays: Feeds = {}
    for text in input_texts:
        arrays = join(arrays, read_input(text, inputs), f"--input {text}")
    check_types(arrays, inputs)
    return arrays


def read_input(text: str, inputs: Described) -> Feeds:
    """Return {input: array} from one --input."""
    name, value = assignment(text, inputs)
    if os.path.exists(value):
        return read_file(name, Path(value), inputs)
    if name is None or (content := as_json(value)) is None:
        raise UsageError(f"no such file: {value}")
    return {name: numbers(content, inputs[name][0], f"--input {text}")}


def is_pattern(text: str) -> bool:
    """Return whether an --input is a pattern for the files of many items."""
    value = value_text(text)
    return glob.has_magic(value) and not os.path.exists(value) and as_json(value) is None


def input_files(input_texts: Iterable[str]) -> list[str]:
    """Return the paths that the options --input name, or may name (see `assignment`)."""
    return [
        value for text in input_texts for value in (text, value_text(text)) if os.path.isfile(value)
    ]


def value_text(text: str) -> str:
    """Return the value of one --input, without the input's name."""
    return text.partition("=")[2] or text


def assignment(text: str, inputs: Described) -> tuple[str | None, str]:
    """Split one --input into (name of the input, file or numbers).

    The name is None for a .npz, which has its own.
    """
    name, separator, value = text.partition("=")
    # A path may have a "=".
    if not separator or (name not in inputs and any(glob.iglob(text, recursive=True))):
        name, separator, value = next(iter(inputs), ""), "", text
    if value.endswith(".npz"):
        if separator:
            raise UsageError(f"--input {text}: a .npz has its own names; leave out {name}=.")
        return None, value
    if not separator and len(inputs) != 1:
        raise UsageError(
            f"--input {text}: which one? The model has the inputs {', '.join(inputs)}."
        )
    check_names([name], inputs)
    return name, value


def as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
    except RecursionError as error:
        raise UsageError("--input: the numbers are in too many brackets.") from error


def numbers(content: Any, element_type: str | None, source: str) -> Array:
    """Return an array from JSON data. The type must be able to hold it; floats may be rounded."""
    if element_type not in dtypes.TABLE:
        raise UsageError(f"{source}: the input is no tensor of a known type.")
    dtype = dtypes.TABLE[element_type].numpy
    is_float = element_type in dtypes.FLOATS
    try:
        objects = np.array(content, object)
        with np.errstate(all="ignore"):
            exact = objects.astype(np.float64) if is_float else objects
            array = exact.astype(dtype)
    except (TypeError, ValueError, OverflowError):
        is_kept = False
    else:
        if is_float:
            is_number = all(type(element) in (int, float) for element in objects.flat)
            is_kept = is_number and np.array_equal(np.isfinite(array), np.isfinite(exact))
        elif element_type == "string":
            is_kept = all(isinstance(element, str) for element in objects.flat)
        else:
            is_kept = array.tolist() == objects.tolist()
    if not is_kept:
        raise UsageError(f"{source}: the model requires {element_type}, which can't hold that.")
    return array


def shape(text: str, inputs: Described) -> tuple[str, list[int]]:
    """Split one --shape into (name of the input, sizes)."""
    name, _, sizes = text.partition("=")
    if not re.fullmatch(r"\d+(,\d+)*", sizes):
        raise UsageError(f"--shape {text}: must be like {next(iter(inputs), 'x')}=1,3,224,224.")
    check_names([name], inputs)
    return name, [int(n) for n in sizes.split(",")]


def stated_sizes(shapes: Iterable[str], inputs: Described, arrays: Arrays) -> dict[str, list[int]]:
    """Return {input: sizes} from the options --shape.

    None may be of the `arrays`, which --input gives.
    """
    sizes = dict(shape(text, inputs) for text in shapes)
    if useless := sizes.keys() & arrays.keys():
        names = ", ".join(sorted(useless))
        raise UsageError(f"--shape is for inputs that are made up, and --input gives {names}.")
    return sizes


def random_array(
    rng: np.random.Generator,
    name: str,
    element_type: str | None,
    dims: Sequence[Dimension],
    shape: Sequence[int] | None,
) -> Array:
    """Return a random array: floats in [-1, 1], integers in [0, 9]; open dimensions are 1."""
    if element_type not in dtypes.TABLE:
        raise UsageError(f"input {name} can't be made up: it is no tensor of a known type.")
    shape = shape or [d if isinstance(d, int) else 1 for d in dims]
    try:
        if element_type in dtypes.FLOATS:
            return rng.uniform(-1, 1, shape).astype(dtypes.TABLE[element_type].numpy)
        integers = rng.integers(0, 10 if element_type != "bool" else 2, shape)
        return (
            integers.astype(str).astype(object)
            if element_type == "string"
            else integers.astype(element_type)
        )
    except (MemoryError, ValueError) as error:  # raised by NumPy for sizes beyond any memory
        raise UsageError(
            f"input {name} can't be made up in the shape {dimensions(shape)}: {error}"
        ) from error


def doubts(made_up: Described, sizes: Collection[str]) -> str:
    """Return a text on random inputs that may make a run fail, and how to give others; or "".

    These are integers, which may be indices or sizes, and shapes that neither the model nor `sizes`
    states.
    """
    of_integers = [n for n, (element_type, _) in made_up.items() if element_type in dtypes.INTEGERS]
    are_open = [
        n
        for n, (_, dims) in made_up.items()
        if n not in sizes and not all(isinstance(d, int) for d in dims)
    ]
    texts = []
    if of_integers:
        texts.append(
            f"the integers of {', '.join(of_integers)} were made up, from 0 to 9: give others "
            "with --input NAME=[5,5] or NAME=FILE"
        )
    if are_open:
        texts.append(
            f"open dimensions of {', '.join(are_open)} were made 1: state them with --shape "
            "NAME=N,C,..."
        )
    return "; ".join(texts)


@contextmanager
def adding_doubts(doubts: str) -> Iterator[None]:
    """Add the `doubts` to the text of an error that is raised inside."""
    try:
        yield
    except Exception as error:
        if not doubts:
            raise
        raise RuntimeError(f"{one_line(error)}; {doubts}") from error


def join(arrays: dict[str, T], added: dict[str, T], source: PathLike) -> dict[str, T]:
    """Return the union of two dicts of inputs.

    No input may be in both; `source` names the origin of the second.
    """
    if again := arrays.keys() & added.keys():
        raise UsageError(f"{source}: {', '.join(sorted(again))} is given already.")
    return arrays | added


def check_names(names: Iterable[str], inputs: Described) -> None:
    if unknown := set(names) - inputs.keys():
        raise UsageError(
            f"the model has no input {', '.join(sorted(unknown))}, but {', '.join(inputs)}."
        )


def check_types(arrays: Arrays, inputs: Described) -> None:
    for name, array in arrays.items():
        if (declared_type := inputs[name][0]) and dtypes.name_of(array) != declared_type:
            raise UsageError(
                f"input {name} is {dtypes.name_of(array)}, the model requires {declared_type}."
            )


def check_complete(arrays: Collection[str | None], inputs: Described, hint: str = "") -> None:
    if missing := ", ".join(
        f"{n} ({t} {dimensions(dims)})" for n, (t, dims) in inputs.items() if n not in arrays
    ):
        raise UsageError(f"no --input for {missing}.{hint}")


def check_outputs(outputs: Described) -> None:
    """Raise an error unless this package can write a model's outputs, given by `Runner.outputs`."""
    if refused := [
        name for name, (element_type, _) in outputs.items() if element_type not in dtypes.TABLE
    ]:
        raise UsageError(
            f"the output {', '.join(refused)} is no tensor of a known type, as all must be."
        )


# Reading files


def read_file(name: str | None, path: Path, inputs: Described) -> Feeds:
    """Return {input: array} from one file.

    name  the input's name; None for a .npz, which has the names of its inputs
    """
    with reading(path):
        arrays = read_archive(path) if name is None else {name: read_array(path, *inputs[name])}
        check_names(arrays, inputs)
        return {name: as_declared(array, inputs[name][0]) for name, array in arrays.items()}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Refuse a file that isn't ordinary, and have errors raised inside name the file."""
    try:
        with ordinary_file(path, "file"):
            yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{path} can't be read: {one_line(error)}") from error


def read_array(path: Path, element_type: str | None, dims: Sequence[Dimension]) -> Array:
    """Return the array in a file, for an input of this type."""
    if path.suffix == ".pb":
        return read_pb(path)
    if path.suffix == ".npy":
        return load_numpy(path)
    if path.suffix.lower() in IMAGES:
        return read_image(path, element_type, dims)
    raise UsageError(f"{path}: must be .npy, .npz, .pb or one of {', '.join(IMAGES)}.")


def check_size(size: int, path: Path) -> None:
    """Raise ValueError if a file takes more bytes of memory than --unpacked allows.

    The size of the file itself is always allowed.
    """
    if size > max(unpacked.get() * 10**6, path.stat().st_size):
        raise ValueError(
            f"it takes {size / 1e6:.0f} MB of memory; onnx-ops --unpacked MB COMMAND raises the "
            "limit"
        )


def read_archive(path: Path) -> Feeds:
    """Return {name: array} from a .npz. Raises ValueError."""
    members = load_numpy(path)
    if isinstance(members, np.ndarray):
        raise ValueError("it is a .npy, not a .npz")
    with members:
        check_size(sum(member.file_size for member in members.zip.infolist()), path)
        return dict(members)


def load_numpy(path: Path) -> Any:
    """Load a file of NumPy. Raises ValueError."""
    try:
        return np.load(path)
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        # NumPy treats every other file as a pickle, and advises how to load it.
        raise ValueError("it is no file of NumPy's, or holds Python's objects") from error


def as_declared(array: Any, element_type: str | None) -> Array:
    """Return the array that `save` has written, from NumPy's array, for a data type."""
    if not isinstance(array, np.ndarray):  # a .npz under another name, or another zip file
        raise ValueError("it holds something else than arrays")
    if array.size and not array.dtype.itemsize:  # a few bytes may state any number of them
        raise ValueError("its elements have no bytes")
    if array.dtype.kind == "U":
        return array.astype(object)
    if element_type == "bfloat16" and array.dtype == "V2":
        return array.view(dtypes.TABLE["bfloat16"].numpy)
    return array


def read_image(path: Path, element_type: str | None, dims: Sequence[Dimension]) -> Array:
    """Read an image as [1, C, H, W], or as [1, H, W, C] if the model has this layout.

    Pixels stay as they are for an input of uint8, and are floats in [0, 1] for others.
    """
    if len(dims) != 4 or element_type not in PIXELS:
        raise UsageError(f"{path}: images are for inputs of rank 4 of floats or uint8.")
    channels_last = dims[3] in MODES and dims[1] not in MODES
    mode = MODES.get(dims[3] if channels_last else dims[1], "RGB")
    with Image.open(path, formats=FORMATS) as image:
        check_size(image.width * image.height * 16, path)  # bytes in Pillow, NumPy and the input
        check_image(image)
        pixels = np.array(
            image.convert("RGBA" if image.has_transparency_data else "RGB").convert(mode)
        )
    pixels = np.atleast_3d(pixels)[None]
    if not channels_last:
        pixels = np.ascontiguousarray(np.moveaxis(pixels, -1, 1))
    if element_type != "uint8":
        pixels = (pixels / np.float32(255)).astype(dtypes.TABLE[element_type].numpy, copy=False)
    return pixels


SAMPLE_FORMAT, SIGNED = 339, 2  # a tag of TIFF, and its value for signed integers


def check_image(image: Any) -> None:
    """Raise ValueError for an image that would lose frames or bits."""
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise ValueError(f"it has {frames} frames; save one of them as a file")
    raw_modes = {
        arguments if isinstance(arguments, str) else arguments[0] for *_, arguments in image.tile
    }
    is_signed = SIGNED in np.atleast_1d(getattr(image, "tag_v2", {}).get(SAMPLE_FORMAT, 1))
    # Pillow reads colours of 16 bits as 8 bits, and signed integers as unsigned ones.
    if (
        is_signed
        or image.mode.startswith(("I", "F"))
        or any(re.search(";16[BLN]", raw_mode) for raw_mode in raw_modes)
    ):
        raw_mode_names = ", ".join(sorted(raw_modes))
        rule = (
            "only unsigned integers of 8 bits are read; save it with 8 bits, or as an array "
            "in a .npy"
        )
        raise ValueError(f"it has the mode {image.mode} (stored as {raw_mode_names}), but {rule}")


# Outputs of another runtime. `outputs` is `Runner.outputs`: {name: (data type, dimensions)}


def read_outputs(path: Path, outputs: Described) -> Feeds:
    """Return {output: array} from a .npz with their names, or from a .npy or .pb with one."""
    with reading(path):
        is_archive = path.suffix == ".npz"
        arrays = (
            read_archive(path) if is_archive else {next(iter(outputs)): read_array(path, None, [])}
        )
        if missing := ", ".join(outputs.keys() - arrays.keys()):
            raise UsageError(f"{path} has no array {missing}, but {', '.join(arrays)}.")
        return {name: as_declared(arrays[name], outputs[name][0]) for name in outputs}


def read_test_outputs(results: Path, test: Path, folder: str, outputs: Described) -> Feeds:
    """Return {output: array} that another runtime has written for a node test.

    folder   of the test's data
    results  path of the test's outputs
    test     the test, whose .pb are the expected outputs
    """
    endings = [".npz"] if len(outputs) > 1 else [".npz", ".npy"]
    arrays: Feeds = {}
    by_name = file_names(outputs)
    for k, (name, file_name) in enumerate(by_name.items()):
        files = [Path(f"{results}{ending}") for ending in endings]
        numbered = [f"output_{k}.npy"] if f"output_{k}" not in by_name.values() else []
        files += [
            results / folder / file for file in (*numbered, f"{file_name}.npy", f"output_{k}.pb")
        ]
        if results.resolve() == test.resolve():
            files.pop()
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            raise UsageError(f"{name} is missing: there is no {', '.join(map(str, files))}")
        arrays |= read_outputs(file, {name: outputs[name]})
    return arrays


# Outputs


def types_and_shapes(arrays: Arrays) -> list[Report]:
    return [
        {"name": name, "type": dtypes.name_of(a), "shape": a.shape} for name, a in arrays.items()
    ]


def write(directory: Path, outputs: Arrays) -> list[Path]:
    """Write all outputs or none, as NAME.npy and, for images, as NAME.png; return the paths."""
    written = []
    with staged(directory) as folder:
        for output, name in file_names(outputs).items():
            array = outputs[output]
            for writer, ending in zip(
                (save, write_image), ENDINGS if is_image(array) else ENDINGS[:1], strict=False
            ):
                written.append(directory / f"{name}{ending}")
                with writing(written[-1]):
                    writer(folder / f"{name}{ending}", array)
    return written


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside into an OpError, which ends the whole run.

    The disk is the cause.
    """
    try:
        yield
    except OSError as error:
        raise OpError(
            None, None, f"{path} can't be written: {error.strerror or error}", "onnx_ops"
        ) from error


def save(file: Path | IO[bytes], array: Array) -> None:
    """Write an array as .npy, without pickles.

    Raises OpError for strings that the format can't hold.

    The format lacks two data types: strings are written as NumPy's strings, and bfloat16 as its
    bits.
    """
    if dtypes.name_of(array) == "string":
        objects, array = array, array.astype(str)
        if not np.array_equal(array, objects):
            raise OpError(
                None, None, "a .npy can't hold strings that end in a NUL character", "onnx_ops"
            )
    np.save(file, array, allow_pickle=False)


def file_names(names: Iterable[str], unsafe: re.Pattern[str] = IN_FILE) -> dict[str, str]:
    """Return {name: file name without suffix}, distinct also on case-insensitive file systems.

    unsafe  what is replaced in a name
    """
    safe = {name: unsafe.sub("_", name)[:200] for name in names}
    unique: dict[str, str] = {}
    used: set[str] = set()
    numbers = itertools.count(2)
    for name in sorted(safe, key=lambda name: safe[name] != name):  # names without changes first
        unique[name] = safe[name]
        while unique[name].lower() in used:
            unique[name] = f"{safe[name]}_{next(numbers)}"
        used.add(unique[name].lower())
    return {name: unique[name] for name in names}


def is_image(array: Array) -> bool:
    """Return whether an array is [N, C, H, W] with 1, 3 or 4 channels of floats or uint8."""
    return (
        array.ndim == 4
        and array.size > 0
        and array.shape[1] in MODES
        and dtypes.name_of(array) in PIXELS
    )


def write_image(path: Path, array: Array) -> None:
    """Write the first image of a batch; floats are clipped to [0, 1]."""
    pixels = np.moveaxis(array[0], 0, -1)
    if pixels.dtype != np.uint8:
        pixels = (
            (np.nan_to_num(pixels.astype(np.float32)).clip(0, 1) * 255).round().astype(np.uint8)
        )
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(path)
