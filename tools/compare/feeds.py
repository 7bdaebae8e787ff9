"""The inputs of a comparison: arrays from files, pictures, or random numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.tools.shared import inputs
from softnpu.tools.shared.failures import ToolError, UsageError

Array = npt.NDArray[Any]
Generate = Callable[[np.random.Generator, str, npt.DTypeLike, Sequence[int]], Array]
"""Generate the values of an input that has none, from its name, type and shape."""

_PICTURES: Final = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff"})


@dataclass(frozen=True)
class Port:
    """An input as feeds see it: its names (the first is shown), its type, its shape."""

    names: Sequence[str]
    type: np.dtype[Any]
    shape: ov.PartialShape


@dataclass(frozen=True)
class Feeds:
    """The arrays of all inputs for each inference, in model order. `origin`: their source."""

    steps: Sequence[Sequence[Array]]
    origin: str


@dataclass(frozen=True)
class Given:
    """The user's inputs: files by input, and the contents of .npz files by name."""

    files: Mapping[str, Path] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)
    archive: Path | None = None


def read(options: Sequence[str], ports: Sequence[Port]) -> Given:
    """Read the files of `--inputs`: FILE.npz by names, NAME=FILE.npy, NAME=PICTURE, FILE for a single input.

    NAME=FILE.npz is one array of the file. `check_names` finds unknown names.
    """
    files: dict[str, Path] = {}
    arrays: dict[str, Array] = {}
    archive = None
    for option in options:
        name, equals, text = option.partition("=")
        path = Path(text if equals and not Path(option).exists() else option)
        if path.suffix == ".npz" and path != Path(text):
            archive = path
            arrays.update(read_archive(path))
            continue
        if path != Path(text):
            if len(ports) != 1:
                names = ", ".join(port.names[0] for port in ports)
                raise UsageError("--inputs", found=option, expected=f"NAME=FILE, with a NAME of: {names}")
            name = ports[0].names[0]
        if name in files:
            raise UsageError(f"--inputs {name}", found="given twice", expected="once")
        files[name] = path
    for name, path in files.items():
        port = _port(name, ports)
        if path.suffix.lower() in _PICTURES:
            arrays[name] = _picture(path, port)
        elif path.suffix == ".npz":
            arrays[name] = _from_archive(path, name, port)
        else:
            arrays[name] = inputs.load_array(name, path)
    return Given(files, arrays, archive)


def check_names(
    given: Given, ports: Sequence[Port], outputs: Sequence[Collection[str]], others: Collection[str]
) -> None:
    """Reject an array that matches no input: its input would get random numbers.

    A file with all outputs, thus a reference, may also have the `others` that the model computes.
    """
    is_reference = all(any(name in given.arrays for name in names) for names in outputs)
    allowed = {name for names in outputs for name in names}.union(others) if is_reference else frozenset()
    for name in given.arrays:
        if name not in allowed:
            _port(name, ports)


def _from_archive(path: Path, name: str, port: Port) -> Array:
    arrays = read_archive(path)
    known = next((each for each in (name, *port.names) if each in arrays), None)
    if known is None:
        has = f"arrays {', '.join(sorted(arrays)) or 'none'}"
        raise ToolError(f"--inputs {name}, {path}", found=has, expected=f"one that is named {name}")
    return arrays[known]


def read_archive(path: Path) -> dict[str, Array]:
    """Read all arrays of a .npz file; raise `ToolError` for any other file."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, EOFError) as error:
        raise ToolError(f"{path}", found=f"no arrays ({error})", expected="a .npz file") from error
    except Exception as error:
        if type(error).__name__ != "BadZipFile":
            raise
        raise ToolError(f"{path}", found=str(error), expected="a .npz file") from error


def make(
    given: Given,
    ports: Sequence[Port],
    count: int,
    seed: int,
    shapes: Mapping[str, Sequence[int]],
    generate: Generate = inputs.random_array,
) -> Feeds:
    """Make the inputs of `count` inferences. Random ones change; arrays have an extra axis or repeat."""
    random = np.random.default_rng(seed)
    steps: list[list[Array]] = [[] for _ in range(count)]
    chosen = 0
    for port in ports:
        name = next((name for name in port.names if name in given.arrays), "")
        if not name:
            shape = _shape(port, shapes)
            values = [generate(random, port.names[0], port.type, shape) for _ in range(count)]
        else:
            chosen += 1
            path = given.files.get(name, given.archive or Path())
            values = _checked(name, path, given.arrays[name], port, count)
        for step, value in zip(steps, values, strict=True):
            step.append(value)
    return Feeds(steps, _origin(given, chosen, len(ports), seed))


def _origin(given: Given, chosen: int, ports: int, seed: int) -> str:
    names = sorted({path.name for path in (*given.files.values(), given.archive) if path is not None})
    parts = [", ".join(names)] if chosen else []
    return " and ".join([*parts, f"random, seed {seed}"] if chosen < ports else parts)


def _checked(name: str, path: Path, array: Array, port: Port, count: int) -> list[Array]:
    """Return the array of each inference, converted to the input's type if that is lossless."""
    rank = port.shape.rank.get_length() if port.shape.rank.is_static else array.ndim
    several = count > 1 and array.ndim == rank + 1 and array.shape[0] == count
    single = array[0] if several else array
    if array.dtype != port.type and np.can_cast(array.dtype, port.type, "safe"):
        array = array.astype(port.type)
        single = single.astype(port.type)
    if not port.shape.compatible(ov.PartialShape(list(single.shape))):
        expected = [str(dimension) for dimension in port.shape]
        inputs.check_array(name, path, single, port.type, expected)
    inputs.check_array(name, path, single, port.type, single.shape)
    return [np.ascontiguousarray(each) for each in array] if several else [array] * count


def _shape(port: Port, shapes: Mapping[str, Sequence[int]]) -> Sequence[int]:
    given = next((shapes[name] for name in port.names if name in shapes), None)
    if given is None and port.shape.is_dynamic:
        raise ToolError(
            f"input '{port.names[0]}'",
            found=f"shape {port.shape}",
            expected="a static shape",
            hint=f"give one with --shape {port.names[0]}=D,D,..., or the values with --inputs",
        )
    return tuple(port.shape.to_shape()) if given is None else given


def _port(name: str, ports: Sequence[Port]) -> Port:
    return ports[inputs.position(f"--inputs {name}", name, (port.names for port in ports))]


def _picture(path: Path, port: Port) -> Array:
    """Read a picture at the input's size: RGB or grey, 0 to 1 for floats, 0 to 255 for integers."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ToolError(
            f"--inputs {path}",
            found="no module PIL",
            expected="it installed",
            hint="install it with: pip install 'softnpu[compare]', or give a .npy file",
        ) from error
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    dimensions = list(port.shape) if port.shape.rank.is_static else []
    extents = [each.get_length() if each.is_static else -1 for each in dimensions]
    # one row of pixels is rarer than one channel, except where the last axis has three values
    channels_first = len(extents) == 4 and (extents[1] == 3 or (extents[1] == 1 and extents[3] != 3))
    own = (1, 3, picture.height, picture.width) if channels_first else (1, picture.height, picture.width, 3)
    shape = [own[at] if each < 0 else each for at, each in enumerate(extents[:4])]
    if len(extents) != 4 or not (channels_first or shape[3] in (1, 3)) or shape[0] != 1:
        raise ToolError(
            f"--inputs {path}",
            found=f"a picture for '{port.names[0]}', shape {port.shape}",
            expected="an input [1, 3 or 1, height, width] or [1, height, width, 3 or 1]",
        )
    channels = shape[1] if channels_first else shape[3]
    height, width = shape[2:] if channels_first else shape[1:3]
    resized = (picture if channels == 3 else picture.convert("L")).resize((width, height))
    array = np.asarray(resized).reshape(1, height, width, channels)
    if port.type.kind == "f":
        array = (array / 255.0).astype(port.type)
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2) if channels_first else array).astype(port.type)
