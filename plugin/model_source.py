"""Models on their way to the compiler: what the user has becomes descriptors of XML and weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import openvino as ov

from softnpu.driver import GraphSource, ZeError, serialized
from softnpu.emulator.compiler.options import COMPILER_VERSION
from softnpu.emulator.interface.result import Refused
from softnpu.plugin import serializer
from softnpu.plugin.errors import ModelError, PropertyError
from softnpu.plugin.metadata import OriginSource
from softnpu.plugin.openvino_runtime import runtime
from softnpu.plugin.properties import ModelProperties
from softnpu.plugin.weights_pool import pool_of_file


@dataclass(frozen=True)
class Form:
    """How a model in memory is serialised.

    `copies` is the base serialiser: all constants are copied. Otherwise those of fewer than `copy_below`
    bytes are, and others go by descriptor or copied once. `weights` is a file that has them.
    """

    copies: bool = False
    copy_below: int = 0
    weights: Path | None = None

    @classmethod
    def of(cls, properties: ModelProperties) -> Form:
        """What the properties say. Raises `PropertyError` for those that do not go together."""
        copies = bool(properties["NPU_USE_BASE_MODEL_SERIALIZER"])
        path = properties["WEIGHTS_PATH"]
        if copies and path:
            raise PropertyError(
                f"property WEIGHTS_PATH: value {path!r} with NPU_USE_BASE_MODEL_SERIALIZER, which copies"
                " all weights; expected one of the two"
            )
        below = int(properties["NPU_SERIALIZATION_WEIGHTS_SIZE_THRESHOLD"])
        return cls(copies, below, Path(path) if path else None)


def opened(
    model: ov.Model | str | Path, weights: Path | None = None, form: Form = Form()
) -> tuple[GraphSource, Callable[[], ov.Model]]:
    """A model on its way to the compiler, and how to have it in memory, for those who must look into it.

    An IR is read by OpenVINO only then, or if its weights are to be looked for. Raises `ModelError`.
    """
    if not isinstance(model, ov.Model) and Path(model).suffix == ".xml" and form.weights is None:
        path = Path(model)
        return from_path(path, weights), partial(read_model, path, weights)
    if not isinstance(model, ov.Model):
        name, model = Path(model).stem, read_model(Path(model), weights)
    else:
        name = model.get_friendly_name()
    read = model
    return from_model(read, name, form), lambda: read


def from_path(path: Path, weights: Path | None = None) -> GraphSource:
    """A model in a file. An IR goes as it is, by descriptor; other formats are read by OpenVINO first.

    Raises `ModelError` when the file is missing or is no model.
    """
    if path.suffix != ".xml":
        return from_model(read_model(path, weights), path.stem)
    try:
        return GraphSource.from_ir(path, weights)
    except OSError as failure:
        raise ModelError(f"model {path}: {failure.strerror}; expected a readable IR file") from failure


def read_model(path: Path, weights: Path | None = None) -> ov.Model:
    """A model in any format that OpenVINO reads. Raises `ModelError` with OpenVINO's reason."""
    for file in (path, weights):
        if file is not None and not file.exists():
            raise ModelError(f"model {file}: no such file; expected a model that OpenVINO reads")
    return read_with(path, weights, {})


def read_with(model: Any, weights: Any, config: Mapping[str, Any]) -> ov.Model:
    """A model in a file or in memory, read by OpenVINO with its properties. Raises `ModelError`."""
    given = () if weights is None else (weights,)
    try:
        return runtime().read_model(model, *given, config=dict(config))
    except (RuntimeError, TypeError) as failure:
        lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
        reason = lines[-1] if lines else "no reason given"
        where = model if isinstance(model, Path) else "in memory"
        raise ModelError(f"model {where}: OpenVINO cannot read it: {reason}") from failure


def origins(source: GraphSource) -> tuple[OriginSource, ...]:
    """Where the weights of a model on its way to the compiler are from."""
    return tuple(
        OriginSource(path=path_of(file.fd), offset=file.offset, length=file.length) for file in source.weights
    )


def path_of(fd: int) -> str:
    """The name of the file behind a descriptor; empty for memory, and for a file without a name."""
    path = os.readlink(f"/proc/self/fd/{fd}")
    try:
        found, asked = os.stat(path), os.fstat(fd)
    except OSError:
        return ""
    return path if (found.st_dev, found.st_ino) == (asked.st_dev, asked.st_ino) else ""


def from_model(model: ov.Model, name: str, form: Form = Form()) -> GraphSource:
    """An `openvino.Model` in memory. Constants that OpenVINO maps from a file, and those that are found in
    the file of weights, go as a descriptor; all others are copied once, into a sealed memory file.

    Raises `ModelError` for a model that cannot be written, and for a file that has none of its weights.
    """
    with ExitStack() as stack:
        pool = None if form.weights is None else stack.enter_context(pool_of_file(form.weights))
        try:
            if form.copies:
                return _parsed(serializer.copying_form(model, COMPILER_VERSION, by_index=False), name)
            if form.copy_below and pool is None:
                stream = serializer.no_copy_form(model, COMPILER_VERSION, False, form.copy_below)
                return _parsed(stream, name)
            return serializer.by_descriptor(model, name, pool)
        except (RuntimeError, Refused, ZeError, OSError) as failure:
            if isinstance(failure, ModelError):
                raise
            raise ModelError(f"model '{name}': it cannot be serialised: {failure}") from failure


def _parsed(stream: bytearray, name: str) -> GraphSource:
    """A serialised model as the driver takes it."""
    source = serialized.parse(memoryview(stream), COMPILER_VERSION, "pfnCreate2")
    source.name = name
    return source
