"""ONNX files that the compiler reads itself: this process neither reads the model nor writes it as an IR.

Only the shapes of the inputs are looked up here: a model that may have a batch is read by OpenVINO, which the
plan of its batch needs (`plugin.batch`).
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from openvino.properties import CacheMode

from softnpu.driver import GraphSource
from softnpu.emulator.common import linux
from softnpu.emulator.interface.environment import PREFIXES_OF_OPENVINO
from softnpu.emulator.interface.messages import ONNX
from softnpu.plugin import openvino_runtime
from softnpu.plugin.properties import ModelProperties

SUFFIX: Final = ".onnx"
_MOST: Final = 64 << 20
"""Bytes of the largest file: the compiled model has a copy of all constants."""
_WEIGHTS_STAY: Final = {
    "CACHE_MODE": CacheMode.OPTIMIZE_SPEED,
    "ENABLE_WEIGHTLESS": False,
    "NPU_BATCH_MODE": "AUTO",
    "WEIGHTS_PATH": "",
}
"""Values of properties with which nothing but the compiler needs the weights, or the model."""

Shape = tuple[int | None, ...] | None
"""Dimensions, None for a dynamic one; None for a dynamic rank."""


def open_file(path: Path, shapes: Mapping[str, Sequence[int]] | None) -> GraphSource | None:
    """Return the model in an ONNX file; None if OpenVINO has to read it here, or cannot read it at all."""
    # the compiler has neither extensions nor such variables
    set_here = any(name.startswith(PREFIXES_OF_OPENVINO) for name in os.environ)
    if path.suffix != SUFFIX or openvino_runtime.is_extended() or set_here:
        return None
    try:
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode) or not 0 < info.st_size <= _MOST:
                return None
            # the copy stays what it is
            fd = linux.sealed_copy("onnx", memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))
    except (OSError, ValueError):
        return None  # reading it raises the reason
    source = GraphSource(path.stem, fd, info.st_size, format=ONNX)
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as content, memoryview(content) as view:
        inputs = _inputs(view)
    if inputs is None or not all(_is_sample((shapes or {}).get(name, shape)) for name, shape in inputs):
        source.close()
        return None
    return source


def is_for_compiler(properties: ModelProperties) -> bool:
    """Return whether the properties leave reading a file to the compiler."""
    return all(properties[name] == value for name, value in _WEIGHTS_STAY.items())


def _is_sample(shape: Sequence[int | None] | None) -> bool:
    """Return whether an input with this shape certainly has no batch."""
    return shape is not None and (not shape or shape[0] == 1 or (len(shape) == 1 and shape[0] is not None))


# ---------------------------------------------------------------- protobuf, as far as inputs need it


class _Field(NamedTuple):
    number: int
    value: int | memoryview


def _inputs(model: memoryview) -> list[tuple[str, Shape]] | None:
    """Return the inputs of a model, those with a default value included; None if it is none, or has none."""
    try:
        graphs = _messages(model, 7)
        return [_input(each) for each in _messages(graphs[-1], 11)] or None if graphs else None
    except (ValueError, IndexError, UnicodeDecodeError):
        return None


def _input(value: memoryview) -> tuple[str, Shape]:
    name = bytes(_messages(value, 1)[-1]).decode()
    for part in (2, 1, 2):  # type, tensor type, shape
        found = _messages(value, part)
        if len(found) != 1:
            return name, None
        value = found[0]
    return name, tuple(_dimension(each) for each in _messages(value, 1))


def _dimension(value: memoryview) -> int | None:
    sizes = [each.value for each in _fields(value) if each.number == 1]
    return sizes[-1] if sizes and isinstance(sizes[-1], int) else None


def _messages(value: memoryview, number: int) -> list[memoryview]:
    return [
        each.value for each in _fields(value) if each.number == number and isinstance(each.value, memoryview)
    ]


def _fields(data: memoryview) -> Iterator[_Field]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        value: Any = 0
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 2:
            size, at = _varint(data, at)
            value = data[at : at + size]
            at += size
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        yield _Field(tag >> 3, value)
    if at > len(data):
        raise ValueError("a field that is cut")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number without end")
