"""Check a newly loaded image: compare an inference on bound memory with one on OpenVINO's own tensors.

On equal inputs both must give equal bits; a difference means that an output was read from memory never
written, or computed from the wrong tensor. It is an option of the daemon, enabled by tests and `softnpu
stress`, and costs two inferences per load.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import openvino as ov

from softnpu.emulator.blob.container import ArgumentMeta, GraphMeta
from softnpu.emulator.common.arrays import Bytes, aligned
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.openvino.bind import bind
from softnpu.emulator.openvino.image import LoadedImage
from softnpu.emulator.openvino.runtime import type_of

log = logging.getLogger(__name__)

Shape = tuple[int, ...]

_DIMENSIONS = (2, 1)  # tried for dynamic ones: inputs may have to match
_FLOATS = ("f32", "f16", "bf16", "f64")
_MAX_BYTES = 64 << 20
_MAX_MS = 200
_RANDOM = {"RandomUniform", "Multinomial"}
_UNWRITTEN = 0xA5


class Value(NamedTuple):
    """An output: its shape and its bytes."""

    shape: Shape
    content: bytes


def check(image: LoadedImage) -> None:
    """Refuse with `ERROR_MODULE_BUILD_FAILURE` an image whose results differ on bound memory.

    Skips models that cannot be compared: those that fail on random inputs, have integer inputs (which may be
    indices: OpenVINO would read out of bounds), compute random numbers, have more than 64 MiB of arguments or
    take more than 200 ms, and those with own kernels.
    """
    meta = image.meta
    if image.has_kernels:
        log.info("self-check of '%s': skipped, it has own kernels", meta.name)
        return
    if meta.dynamic_states:
        log.info("self-check of '%s': skipped, it has states whose shape changes", meta.name)
        return
    if any(argument.element_type not in _FLOATS for argument in _tensors(meta.inputs)):
        log.info("self-check of '%s': skipped, it has inputs of integers, or of compressed types", meta.name)
        return
    if _is_random(image.compiled):
        log.info("self-check of '%s': skipped, it computes random numbers", meta.name)
        return
    arguments = _tensors(meta.inputs)
    fixed = [argument.byte_size for argument in _tensors(meta.arguments) if not argument.is_dynamic]
    if sum(fixed) > _MAX_BYTES:
        log.info("self-check of '%s': skipped, it is too large", meta.name)
        return
    for dimension in _DIMENSIONS:
        shapes = [_shape(argument, dimension) for argument in arguments]
        if sum(_size(*each) for each in zip(arguments, shapes, strict=True)) > _MAX_BYTES:
            break
        generator = np.random.default_rng(len(shapes))
        inputs = [
            _random(generator, argument.element_type, math.prod(shape))
            for argument, shape in zip(arguments, shapes, strict=True)
        ]
        expected = _unbound(image, shapes, inputs)
        if expected is None:
            image.renew()
            continue
        actual = _bound(image, shapes, inputs, expected)
        if actual is None:
            image.renew()
            break
        _compare(meta, actual, expected)
        log.info("self-check of '%s': equal", meta.name)
        return
    log.info("self-check of '%s': skipped, it cannot be run on random inputs in time", meta.name)


def _compare(meta: GraphMeta, actual: Sequence[Value], expected: Sequence[Value]) -> None:
    for argument, ours, theirs in zip(_tensors(meta.outputs), actual, expected, strict=True):
        if ours.shape != theirs.shape:
            raise _differs(meta, argument.name, f"shape {list(ours.shape)}", f"{list(theirs.shape)}")
        if ours.content != theirs.content:
            pairs = zip(ours.content, theirs.content, strict=True)
            first = next(at for at, (one, other) in enumerate(pairs) if one != other)
            written = any(byte != _UNWRITTEN for byte in ours.content)
            difference = f"other bits from byte {first} on" if written else "nothing was written"
            raise _differs(meta, argument.name, difference, "equal bits")


def _unbound(image: LoadedImage, shapes: Sequence[Shape], inputs: Sequence[Bytes]) -> list[Value] | None:
    """Compute in OpenVINO's own tensors; return None on failure, timeout or undeclared shapes."""
    request = image.compiled.create_infer_request()
    try:
        arguments = _tensors(image.meta.inputs)
        for position, (argument, shape, data) in enumerate(zip(arguments, shapes, inputs, strict=True)):
            tensor = request.get_input_tensor(position)
            if argument.is_dynamic:
                tensor.shape = ov.Shape(shape)
            if data.size:
                ov.Tensor(data, ov.Shape(shape), type_of(argument)).copy_to(tensor)
        request.start_async()
        if not request.wait_for(_MAX_MS):
            request.cancel()
            with contextlib.suppress(RuntimeError):  # reports the cancellation
                request.wait()
            return None
        request.wait()
        values = [_value(tensor) for tensor in request.output_tensors]
    except (RuntimeError, ValueError) as error:
        log.debug("self-check of '%s': %s", image.meta.name, error)
        return None
    for position in image.separated:
        values[position] = values[position]._replace(shape=image.meta.outputs[position].shape)
    outputs = zip(_tensors(image.meta.outputs), values, strict=True)
    if any(not argument.is_dynamic and argument.shape != value.shape for argument, value in outputs):
        log.debug("self-check of '%s': inputs that do not fit each other", image.meta.name)
        return None
    return values


def _bound(
    image: LoadedImage, shapes: Sequence[Shape], inputs: Sequence[Bytes], expected: Sequence[Value]
) -> list[Value] | None:
    """Compute on bound memory; return None on timeout. Raises `Refused` on failure."""
    meta, shape_tensors = image.meta, image.meta.shape_tensors
    content = iter(inputs)
    sizes = iter(len(value.content) for value in expected)
    views: list[Bytes] = []
    for argument in meta.arguments:
        if argument.shape_of >= 0:
            views.append(aligned(argument.byte_size, _UNWRITTEN))
        elif argument.input:
            data = next(content)
            views.append(aligned(data.nbytes, _UNWRITTEN))
            views[-1][:] = data
        else:
            size = next(sizes)
            views.append(
                aligned(max(size, type_of(argument).size) if argument.is_dynamic else size, _UNWRITTEN)
            )
    tensors = [shape_tensors[index] for index, argument in enumerate(meta.inputs) if argument.is_dynamic]
    dynamic = [at for argument, at in zip(_tensors(meta.inputs), shapes, strict=True) if argument.is_dynamic]
    for shape_tensor, shape in zip(tensors, dynamic, strict=True):
        views[shape_tensor].view(np.int32)[:] = shape[::-1]
    end = time.monotonic() + _MAX_MS / 1000
    late = False

    def is_cancelled() -> bool:
        nonlocal late
        late = time.monotonic() > end
        return late

    try:
        bind(image, views, _ignore).run(is_cancelled)
    except (RuntimeError, Refused) as error:
        raise _differs(meta, "", openvino_errors.reason(error), "an inference that succeeds") from error
    if late:
        return None
    values = []
    for index, argument in enumerate(meta.arguments):
        if argument.input or argument.shape_of >= 0:
            continue
        shape = argument.shape
        if argument.is_dynamic:
            shape = tuple(views[shape_tensors[index]].view(np.int32)[::-1].tolist())
        values.append(Value(shape, bytes(views[index][: _size(argument, shape)])))
    return values


def _ignore(_copied: int) -> None:
    return


def _value(tensor: ov.Tensor) -> Value:
    content = np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8)
    return Value(tuple(tensor.shape), content.tobytes())


def _tensors(arguments: Sequence[ArgumentMeta]) -> list[ArgumentMeta]:
    """Return the arguments without shape tensors."""
    return [argument for argument in arguments if argument.shape_of < 0]


def _shape(argument: ArgumentMeta, dimension: int) -> Shape:
    """Return a valid shape of an argument, its own unless dynamic."""
    if not argument.is_dynamic:
        return argument.shape
    bounds = [(dim.get_min_length(), dim.get_max_length()) for dim in ov.PartialShape(argument.partial_shape)]
    return tuple(max(low, dimension if high < 0 else min(high, dimension)) for low, high in bounds)


def _size(argument: ArgumentMeta, shape: Shape) -> int:
    return math.prod(shape) * int(type_of(argument).size)


def _random(generator: np.random.Generator, element_type: str, count: int) -> Bytes:
    """Return random elements from -1 to 1."""
    values = generator.uniform(-1, 1, count)
    if element_type == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype(f"f{int(element_type[1:]) // 8}").view(np.uint8)


def _is_random(compiled: ov.CompiledModel) -> bool:
    """Whether two inferences on equal inputs may differ."""
    operations = compiled.get_runtime_model().get_ordered_ops()
    return any(operation.rt_info["layerType"].astype(str) in _RANDOM for operation in operations)


def _differs(meta: GraphMeta, output: str, found: str, expected: str) -> Refused:
    return refuse(
        ZeResult.ERROR_MODULE_BUILD_FAILURE,
        f"self-check of graph '{meta.name}'" + (f", output '{output}'" if output else ""),
        found=f"on bound memory {found}",
        expected=f"{expected}, as in OpenVINO's own tensors",
        hint="this is a defect of softnpu: please report it with the model",
    )
