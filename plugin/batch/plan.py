"""Who splits a batch, the plugin or the compiler: decided when a model is compiled, by NPU_BATCH_MODE.

AUTO has the plugin do it only if it is proven that samples do not meet (`tracking`); otherwise the compiler
takes the batch as it is. An explicit mode is honoured, or refused with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import openvino as ov

from softnpu.driver import GraphSource
from softnpu.emulator.blob.container import GraphMeta
from softnpu.emulator.compiler.options import STRIDES_FOR
from softnpu.plugin.batch.axes import Candidate, Evidence, batch_axis, candidates, only_batch_is_dynamic
from softnpu.plugin.batch.input_scan import ModelInputs, look_at_model, look_at_xml
from softnpu.plugin.batch.tracking import NotSplittable, Tracked, track, with_dimension
from softnpu.plugin.errors import CompileError
from softnpu.plugin.properties import ModelProperties
from softnpu.plugin.signature import PortSpec, Signature, signature_of

BATCH_MODE = "NPU_BATCH_MODE"
AUTO, PLUGIN, COMPILER = "AUTO", "PLUGIN", "COMPILER"
_STRIDE_DIMS = 5

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class BatchedPort:
    """One port of a model that the plugin splits. `axis` is None for an input that all samples share.

    `sample` is the shape of one sample, so `sample[axis]` is how long it is on the axis of the batch.
    """

    axis: int | None
    sample: tuple[int, ...]

    @property
    def needs_strides(self) -> bool:
        """Whether the elements of one sample do not lie together."""
        return self.axis is not None and math.prod(self.sample[: self.axis]) != 1


@dataclass(frozen=True)
class Split:
    """How the plugin splits a model: its batch, all inputs, then all outputs."""

    size: ov.Dimension
    inputs: tuple[BatchedPort, ...]
    outputs: tuple[BatchedPort, ...]

    @property
    def ports(self) -> tuple[BatchedPort, ...]:
        """All inputs, then all outputs."""
        return self.inputs + self.outputs


@dataclass(frozen=True)
class BatchPlan:
    """What `compile_model` does about the batch.

    `mode` is what NPU_BATCH_MODE of the compiled model tells, `message` what the log does (empty: there is no
    batch), `shapes` and `strides_for` go to the compiler.
    """

    mode: str
    message: str = ""
    shapes: Shapes | None = None
    strides_for: tuple[str, ...] = ()
    split: Split | None = field(default=None, repr=False)

    def for_compiler(self, config: Mapping[str, str]) -> dict[str, str]:
        """The compiler's configuration. As the real plugin does, it says COMPILER once this is decided."""
        told = dict(config)
        if self.split is not None or (self.mode == COMPILER and self.message):
            told[BATCH_MODE] = COMPILER
        if self.strides_for:
            given = [told[STRIDES_FOR]] if told.get(STRIDES_FOR) else []
            told[STRIDES_FOR] = ",".join([*given, *self.strides_for])
        return told

    def signature(self, meta: GraphMeta) -> Signature | None:
        """The ports as the user sees them, if the plugin splits the batch."""
        if self.split is None:
            return None
        seen = signature_of(meta)
        ports = [
            _port(port, split, self.split.size)
            for port, split in zip(seen.ports, self.split.ports, strict=True)
        ]
        count = len(seen.inputs)
        return msgspec.structs.replace(
            seen, inputs=tuple(ports[:count]), outputs=tuple(ports[count:]), batch=str(self.split.size)
        )


def plan_batch(
    source: GraphSource, read: Callable[[], ov.Model], properties: ModelProperties, shapes: Shapes | None
) -> BatchPlan:
    """Decides for the model in `source`, which `read` reads if a quick look at its XML does not do.

    `shapes` are those that inputs are to be given. Raises `CompileError` if PLUGIN is asked for and cannot
    be had.
    """
    name, mode = source.name, str(properties[BATCH_MODE])
    if mode == AUTO and properties["NPU_DYNAMIC_SHAPE_TO_STATIC"]:
        return BatchPlan(AUTO, shapes=shapes)  # what is dynamic becomes static as a whole
    look = look_at_xml(source.xml_fd, source.xml_length)
    if mode == COMPILER:
        size = (
            "" if look is None or _has_none(look.shaped(shapes), False) else _size(look.shaped(shapes), False)
        )
        message = f"batch {size} handled by the compiler, as {BATCH_MODE} asks" if size else ""
        return BatchPlan(COMPILER, message, shapes)
    if look is not None and _has_none(look.shaped(shapes), mode == PLUGIN):
        return _unsplit(look.shaped(shapes), mode, shapes)
    model = read()
    look = look_at_model(model).shaped(shapes)
    if _has_none(look, mode == PLUGIN):
        return _unsplit(look, mode, shapes)
    try:
        found, tracked = _found(model, look, mode == PLUGIN)
        return _plugin_plan(look, found, tracked, shapes)
    except NotSplittable as reason:
        size = _size(look, mode == PLUGIN)
        if mode == PLUGIN:
            raise CompileError(
                f"model '{name}', property {BATCH_MODE}: PLUGIN cannot split its batch of {size}: {reason};"
                " expected samples that are independent of each other. Use AUTO or COMPILER"
            ) from reason
        message = f"batch {size} handled by the compiler because {reason}"
        return BatchPlan(COMPILER, message, shapes)


def _unsplit(look: ModelInputs, mode: str, shapes: Shapes | None) -> BatchPlan:
    """The plan for a model that has no batch, as far as its inputs tell."""
    if mode == PLUGIN or not candidates(look.inputs, explicit=False):
        return BatchPlan(mode, shapes=shapes)
    size = _size(look, explicit=False)
    message = f"first dimension {size} left to the compiler because no layout says that it is a batch"
    return BatchPlan(COMPILER, message, shapes)


def _has_none(look: ModelInputs, explicit: bool) -> bool:
    """Whether the model has no batch, as far as its inputs tell."""
    try:
        found = candidates(look.inputs, explicit)
    except NotSplittable:
        return False
    return not any(_worth_a_try(candidate, look.has_batch_layer, explicit) for candidate in found)


def _worth_a_try(candidate: Candidate, has_batch_layer: bool, explicit: bool) -> bool:
    # a static first dimension alone may be anything: rows of a matrix are no samples
    return explicit or has_batch_layer or candidate.evidence is not Evidence.FIRST


def _found(model: ov.Model, look: ModelInputs, explicit: bool) -> tuple[Candidate, Tracked]:
    """The first candidate that can be split. Raises `NotSplittable` with the reason of the first."""
    refusal: NotSplittable | None = None
    for candidate in candidates(look.inputs, explicit):
        if not _worth_a_try(candidate, look.has_batch_layer, explicit):
            continue
        try:
            only_batch_is_dynamic(look.inputs, candidate)
            if model.get_variables():
                raise NotSplittable("it has states, which belong to one sample each", mixes=True)
            # a layout is the user's word for the axis; that samples do not meet on it has to be seen
            trusting = explicit and candidate.evidence is Evidence.LAYOUT
            tracked = track(_shaped(model, look), candidate.axes, trusting)
            _check_layouts(model, tracked)
            if not explicit and candidate.size.is_dynamic and tracked.narrowing:
                raise NotSplittable(
                    f"operation {tracked.narrowing} converts to 8 bits, which gives other numbers outside of"
                    " their range when a batch is dynamic",
                    mixes=False,
                )
            if not explicit and candidate.evidence is Evidence.FIRST and not tracked.batch_layer:
                raise NotSplittable("no layout says that its first dimension is a batch", mixes=False)
        except NotSplittable as reason:
            refusal = refusal or reason
        else:
            return candidate, tracked
    assert refusal is not None
    raise refusal


def _check_layouts(model: ov.Model, tracked: Tracked) -> None:
    """Raises `NotSplittable` if an output has its samples elsewhere than its layout says."""
    for index, (port, (axis, _)) in enumerate(zip(model.outputs, tracked.outputs, strict=True)):
        told = batch_axis(port.node.layout, port.partial_shape)
        if told is not None and told != axis:
            raise NotSplittable(
                f"output {index} has its samples on axis {axis}, and on axis {told} by its layout", mixes=True
            )


def _plugin_plan(
    look: ModelInputs, candidate: Candidate, tracked: Tracked, shapes: Shapes | None
) -> BatchPlan:
    one = ov.Dimension(1)
    inputs = tuple(
        BatchedPort(
            axis, tuple((given.shape if axis is None else with_dimension(given.shape, axis, one)).to_shape())
        )
        for given, axis in zip(look.inputs, candidate.axes, strict=True)
    )
    split = Split(
        candidate.size, inputs, tuple(BatchedPort(axis, sample) for axis, sample in tracked.outputs)
    )
    strided = []
    for index, port in enumerate(split.ports):
        if port.needs_strides:
            if len(port.sample) > _STRIDE_DIMS:
                what = (
                    f"input '{look.inputs[index].name}'"
                    if index < len(inputs)
                    else f"output {index - len(inputs)}"
                )
                raise NotSplittable(
                    f"a sample of {what} is not contiguous, and it has more than {_STRIDE_DIMS} dimensions",
                    mixes=False,
                )
            strided.append(str(index))
    axes = [f"axis {port.axis} of '{given.name}'" for given, port in zip(look.inputs, inputs, strict=True)
            if port.axis is not None]  # fmt: skip
    axes += [f"axis {port.axis} of output {index}" for index, port in enumerate(split.outputs)]
    message = (
        f"batch {candidate.size} -> 1 handled by the plugin: {', '.join(axes)}, by {candidate.evidence.value}"
    )
    if tracked.trusted:
        message += f"; trusting the layouts that samples are independent in {', '.join(tracked.trusted)}"
    given_shapes = dict(shapes or {})
    for given, port in zip(look.inputs, inputs, strict=True):
        if port.axis is not None:
            asked = next((name for name in given.names if name in given_shapes), given.name)
            given_shapes[asked] = port.sample
    return BatchPlan(PLUGIN, message, given_shapes, tuple(strided), split)


def _shaped(model: ov.Model, look: ModelInputs) -> ov.Model:
    """The model with the shapes of the look; a clone if they are others."""
    changed = {
        index: given.shape
        for index, (given, port) in enumerate(zip(look.inputs, model.inputs, strict=True))
        if given.shape != port.partial_shape
    }
    if not changed:
        return model
    clone = model.clone()
    try:
        clone.reshape(changed)
    except RuntimeError as failure:
        raise NotSplittable("it cannot be given the shapes that were asked for", mixes=False) from failure
    return clone


def _size(look: ModelInputs, explicit: bool) -> str:
    try:
        return str(candidates(look.inputs, explicit)[0].size)
    except NotSplittable:
        return "unknown size"


def _port(port: PortSpec, split: BatchedPort, size: ov.Dimension) -> PortSpec:
    if split.axis is None:
        return port
    dims = [ov.Dimension(length) for length in split.sample]
    dims[split.axis] = _times(size, split.sample[split.axis])
    return msgspec.structs.replace(
        port, shape=str(ov.PartialShape(dims)), batch_axis=split.axis, per_sample=split.sample[split.axis]
    )


def _times(size: ov.Dimension, length: int) -> ov.Dimension:
    if length == 1 or (size.is_dynamic and size.max_length < 0 and size.min_length <= 0):
        return size
    most = -1 if size.max_length < 0 else size.max_length * length
    return ov.Dimension(size.min_length * length, most)
