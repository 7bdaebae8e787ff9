"""A user's model as descriptors for the compiler: of its XML, and of its weights files."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import openvino as ov
from msgspec.structs import replace

from softnpu.driver import Context, GraphSource, ZeError
from softnpu.emulator.common import model_texts
from softnpu.emulator.interface.result import Refused
from softnpu.plugin.errors import ModelError, PropertyError
from softnpu.plugin.models import expected_graphs, onnx_file
from softnpu.plugin.models.dynamic_bounds import Shapes, with_bounds
from softnpu.plugin.models.meanwhile import meanwhile
from softnpu.plugin.openvino_runtime import read_model
from softnpu.plugin.properties import ModelProperties


class SourceOptions(msgspec.Struct, frozen=True):
    """How constants of a model in memory go to the compiler.

    Constants of fewer than `copy_below` bytes are copied. Others are passed by descriptor if they are mapped
    from a file or have the same bytes in the file `weights`, and are copied otherwise.
    """

    copy_below: int = 0
    weights: Path | None = None

    @classmethod
    def of(cls, properties: ModelProperties) -> SourceOptions:
        """Return the options selected by the properties. Raises `PropertyError` for contradictory ones."""
        path = properties["WEIGHTS_PATH"]
        if not properties["NPU_USE_BASE_MODEL_SERIALIZER"]:
            below = int(properties["NPU_SERIALIZATION_WEIGHTS_SIZE_THRESHOLD"])
            return cls(below, Path(path) if path else None)
        if path:
            raise PropertyError(
                f"property WEIGHTS_PATH: value {path!r} with NPU_USE_BASE_MODEL_SERIALIZER, which copies"
                " all weights; expected one of the two"
            )
        return cls(copy_below=sys.maxsize)


class OpenedModel(msgspec.Struct, frozen=True):
    """A model in the compiler's form; `read` returns it as an `openvino.Model`.

    `keep` caches what OpenVINO has read for the next process, if possible; `source` must be open. `shapes`
    are static ones for the compiler, `hint` is that of the graph (`expected_graphs`), `file` is the model's.
    `as_ir` opens it as an IR, if the source is none.
    """

    source: GraphSource
    read: Callable[[], ov.Model]
    keep: Callable[[], None] | None = None
    shapes: Mapping[str, Sequence[int]] | None = None
    hint: bytes = b""
    file: str = ""
    as_ir: Callable[[], OpenedModel] | None = None


def open_model(
    context: Context,
    model: ov.Model | str | Path,
    weights: Path | None,
    shapes: Shapes | None,
    properties: ModelProperties,
) -> OpenedModel:
    """Open a model in memory or in a file, and make the device expect it.

    OpenVINO reads an IR only when `read` is called, and a file in another format only if the compiler does
    not read it itself, and its IR is not in the cache named by `properties`.
    Raises `ModelError`, and `CompileError` for invalid `shapes`.
    """
    hint = expected_graphs.expect_model(context, model, weights, properties.for_compiler(), shapes)
    file = "" if isinstance(model, ov.Model) else os.path.abspath(model)
    bounded, static_shapes = with_bounds(model, weights, shapes)
    options = SourceOptions.of(properties)
    if isinstance(bounded, ov.Model):
        source = from_model(bounded, model_texts.friendly_name(bounded), options)
        opened = OpenedModel(source, lambda: bounded)
    else:
        opened = open_file(Path(bounded), weights, options, properties, static_shapes)
    return replace(opened, shapes=static_shapes, hint=hint, file=file)


def open_file(
    path: Path,
    weights: Path | None,
    options: SourceOptions,
    properties: ModelProperties,
    shapes: Mapping[str, Sequence[int]] | None,
) -> OpenedModel:
    """Open a model in a file; `shapes` are static. Raises `ModelError`."""
    if path.suffix == ".xml" and options.weights is None:
        return OpenedModel(from_path(path, weights), partial(read_model, path, weights))
    as_ir = partial(_open_read, path, weights, options, properties)
    source = None
    if weights is None and onnx_file.is_for_compiler(properties):
        source = onnx_file.open_file(path, shapes)
    return as_ir() if source is None else OpenedModel(source, partial(read_model, path), as_ir=as_ir)


def _open_read(
    path: Path, weights: Path | None, options: SourceOptions, properties: ModelProperties
) -> OpenedModel:
    from softnpu.plugin.models.read_models import ReadModels  # late: an IR needs none

    file, cache = None, ReadModels.of(properties)
    if cache is not None and weights is None and options.weights is None:
        file = cache.open_file(path, options.copy_below)
        source = None if file is None else cache.find(file, path.stem)
        if source is not None:
            return OpenedModel(source, partial(read_model, path))
    with meanwhile(lambda: importlib.import_module(f"{__package__}.serializer")):
        in_memory = read_model(path, weights)
    source = from_model(in_memory, path.stem, options)
    keep = None if cache is None or file is None else partial(cache.store, file, source)
    return OpenedModel(source, lambda: in_memory, keep)


def from_path(path: Path, weights: Path | None = None) -> GraphSource:
    """Open a model in a file. An IR is passed by descriptor; OpenVINO reads other formats.

    Raises `ModelError` for a file that is missing or that OpenVINO cannot read.
    """
    if path.suffix != ".xml":
        return from_model(read_model(path, weights), path.stem)
    try:
        return GraphSource.from_ir(path, weights)
    except OSError as failure:
        raise ModelError(f"model {path}: {failure.strerror}; expected a readable IR file") from failure


_DEFAULTS = SourceOptions()


def from_model(model: ov.Model, name: str, options: SourceOptions = _DEFAULTS) -> GraphSource:
    """Convert an `openvino.Model` in memory.

    Raises `ModelError` for a model that cannot be serialised, and for a weights file with none of its
    weights.
    """
    from softnpu.plugin.models import serializer, weights_pool  # late: an IR in a file needs neither

    try:
        if options.weights is None:
            return serializer.by_descriptor(model, name, copy_below=options.copy_below)
        with weights_pool.pool_of_file(options.weights) as pool:
            return serializer.by_descriptor(model, name, pool, options.copy_below)
    except ModelError:
        raise
    except (RuntimeError, Refused, ZeError, OSError) as failure:
        raise ModelError(f"model '{name}': it cannot be serialised: {failure}") from failure
