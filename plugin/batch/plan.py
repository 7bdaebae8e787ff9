"""Decide at compilation, by NPU_BATCH_MODE, whether the plugin or the compiler handles a batch.

AUTO selects the plugin only if samples are proven independent (`tracking`); otherwise the compiler takes the
whole batch. An explicit mode is honoured, or refused with the reason.
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
from softnpu.emulator.interface.commands import MAX_DIMS
from softnpu.plugin.batch.axes import Candidate, Evidence, batch_axis, candidates, only_batch_is_dynamic
from softnpu.plugin.batch.input_scan import ModelInputs, scan_model, scan_xml
from softnpu.plugin.batch.tracking import NotSplittable, Tracked, track, with_dimension
from softnpu.plugin.errors import CompileError
from softnpu.plugin.properties import ModelProperties
from softnpu.plugin.signature import PortSpec, Signature, signature_of

BATCH_MODE = "NPU_BATCH_MODE"
AUTO, PLUGIN, COMPILER = "AUTO", "PLUGIN", "COMPILER"

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class BatchedPort:
    """One port of a model that the plugin splits. `axis` is None for an input that all samples share.

    `sample` is the shape of one sample, so `sample[axis]` is its length on the axis of the batch.
    """

    axis: int | None
    sample: tuple[int, ...]

    @property
    def needs_strides(self) -> bool:
        """Whether one sample is not contiguous."""
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
    """The decision for one model.

    `mode` is NPU_BATCH_MODE of the compiled model, `message` is for the log (empty without a batch), `shapes`
    and `strides_for` are for the compiler.
    """

    mode: str
    message: str = ""
    shapes: Shapes | None = None
    strides_for: tuple[str, ...] = ()
    split: Split | None = field(default=None, repr=False)

    def for_compiler(self, config: Mapping[str, str]) -> dict[str, str]:
        """The compiler's configuration. Like the real plugin's it says COMPILER once a batch is decided."""
        decided = dict(config)
        if self.split is not None or (self.mode == COMPILER and self.message):
            decided[BATCH_MODE] = COMPILER
        if self.strides_for:
            requested = [decided[STRIDES_FOR]] if decided.get(STRIDES_FOR) else []
            decided[STRIDES_FOR] = ",".join([*requested, *self.strides_for])
        return decided

    def signature(self, meta: GraphMeta) -> Signature | None:
        """The ports with the batch, if the plugin splits it."""
        if self.split is None:
            return None
        sample = signature_of(meta)
        ports = [
            _port(port, split, self.split.size)
            for port, split in zip(sample.ports, self.split.ports, strict=True)
        ]
        count = len(sample.inputs)
        return msgspec.structs.replace(
            sample, inputs=tuple(ports[:count]), outputs=tuple(ports[count:]), batch=str(self.split.size)
        )


def plan_batch(
    source: GraphSource, read: Callable[[], ov.Model], properties: ModelProperties, shapes: Shapes | None
) -> BatchPlan:
    """Decide for the model in `source`; `read` reads it if a scan of its XML is not enough.

    `shapes` are new shapes for inputs. Raises `CompileError` if PLUGIN is requested and impossible.
    """
    name, mode = source.name, str(properties[BATCH_MODE])
    if mode == AUTO and properties["NPU_DYNAMIC_SHAPE_TO_STATIC"]:
        return BatchPlan(AUTO, shapes=shapes)  # all dynamic dimensions become static
    scanned = scan_xml(source.xml_fd, source.xml_length)
    scanned = None if scanned is None else scanned.shaped(shapes)
    if mode == COMPILER:
        has_batch = scanned is not None and not _has_none(scanned, explicit=False)
        size = _size(scanned, explicit=False) if scanned is not None and has_batch else ""
        message = f"batch {size} handled by the compiler, as {BATCH_MODE} asks" if size else ""
        return BatchPlan(COMPILER, message, shapes)
    explicit = mode == PLUGIN
    if scanned is not None and _has_none(scanned, explicit):
        return _unsplit(scanned, mode, shapes)
    model = read()
    try:
        scanned = scan_model(model).shaped(shapes)
        if _has_none(scanned, explicit):
            return _unsplit(scanned, mode, shapes)
        candidate, tracked = _first_splittable(model, scanned, explicit)
        return _plugin_plan(scanned, candidate, tracked, shapes)
    except (NotSplittable, UnicodeDecodeError) as failure:
        reason = failure if isinstance(failure, NotSplittable) else f"name {failure.object!r} is not UTF-8"
        size = "unknown size" if scanned is None else _size(scanned, explicit)
        if explicit:
            raise CompileError(
                f"model '{name}', property {BATCH_MODE}: PLUGIN cannot split its batch of {size}: {reason};"
                " expected samples that are independent of each other. Use AUTO or COMPILER"
            ) from failure
        message = f"batch {size} handled by the compiler because {reason}"
        return BatchPlan(COMPILER, message, shapes)


def _unsplit(scanned: ModelInputs, mode: str, shapes: Shapes | None) -> BatchPlan:
    """The plan for a model without a batch, by its inputs."""
    if mode == PLUGIN or not candidates(scanned.inputs, explicit=False):
        return BatchPlan(mode, shapes=shapes)
    size = _size(scanned, explicit=False)
    message = f"first dimension {size} left to the compiler because no layout says that it is a batch"
    return BatchPlan(COMPILER, message, shapes)


def _has_none(scanned: ModelInputs, explicit: bool) -> bool:
    """Whether the model has no batch, by its inputs."""
    try:
        possible = candidates(scanned.inputs, explicit)
    except NotSplittable:
        return False
    return not any(_is_plausible(candidate, scanned.has_batch_layer, explicit) for candidate in possible)


def _is_plausible(candidate: Candidate, has_batch_layer: bool, explicit: bool) -> bool:
    # a static first dimension alone is no evidence: rows of a matrix are no samples
    return explicit or has_batch_layer or candidate.evidence is not Evidence.FIRST


def _first_splittable(model: ov.Model, scanned: ModelInputs, explicit: bool) -> tuple[Candidate, Tracked]:
    """The first candidate that can be split. Raises `NotSplittable` with the reason of the first."""
    refusal: NotSplittable | None = None
    for candidate in candidates(scanned.inputs, explicit):
        if not _is_plausible(candidate, scanned.has_batch_layer, explicit):
            continue
        try:
            only_batch_is_dynamic(scanned.inputs, candidate)
            for port in (*model.inputs, *model.outputs):
                if port.element_type.bitwidth < 8:
                    raise NotSplittable(
                        f"samples of {port.element_type.to_string()} share bytes", mixes=False
                    )
            if model.get_variables():
                raise NotSplittable("it has states, which belong to one sample each", mixes=True)
            # a layout names the axis; whether samples are independent on it has to be proven
            trusting = explicit and candidate.evidence is Evidence.LAYOUT
            tracked = track(_shaped(model, scanned), candidate.axes, trusting)
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
    """Raise `NotSplittable` if the samples of an output are not on the axis that its layout names."""
    for index, (port, (axis, _)) in enumerate(zip(model.outputs, tracked.outputs, strict=True)):
        named = batch_axis(port.node.layout, port.partial_shape)
        if named is not None and named != axis:
            raise NotSplittable(
                f"output {index} has its samples on axis {axis}, and on axis {named} by its layout",
                mixes=True,
            )


def _plugin_plan(
    scanned: ModelInputs, candidate: Candidate, tracked: Tracked, shapes: Shapes | None
) -> BatchPlan:
    one = ov.Dimension(1)
    inputs = tuple(
        BatchedPort(
            axis, tuple((entry.shape if axis is None else with_dimension(entry.shape, axis, one)).to_shape())
        )
        for entry, axis in zip(scanned.inputs, candidate.axes, strict=True)
    )
    split = Split(
        candidate.size, inputs, tuple(BatchedPort(axis, sample) for axis, sample in tracked.outputs)
    )
    strided = []
    for index, port in enumerate(split.ports):
        if port.needs_strides:
            if len(port.sample) > MAX_DIMS:
                is_input = index < len(inputs)
                name = (
                    f"input '{scanned.inputs[index].name}'" if is_input else f"output {index - len(inputs)}"
                )
                raise NotSplittable(
                    f"a sample of {name} is not contiguous, and it has more than {MAX_DIMS} dimensions",
                    mixes=False,
                )
            strided.append(str(index))
    axes = [f"axis {port.axis} of '{entry.name}'" for entry, port in zip(scanned.inputs, inputs, strict=True)
            if port.axis is not None]  # fmt: skip
    axes += [f"axis {port.axis} of output {index}" for index, port in enumerate(split.outputs)]
    message = (
        f"batch {candidate.size} -> 1 handled by the plugin: {', '.join(axes)}, by {candidate.evidence.value}"
    )
    if tracked.trusted:
        message += f"; trusting the layouts that samples are independent in {', '.join(tracked.trusted)}"
    new_shapes = dict(shapes or {})
    for entry, port in zip(scanned.inputs, inputs, strict=True):
        if port.axis is not None:
            name = next((name for name in entry.names if name in new_shapes), entry.name)
            new_shapes[name] = port.sample
    return BatchPlan(PLUGIN, message, new_shapes, tuple(strided), split)


def _shaped(model: ov.Model, scanned: ModelInputs) -> ov.Model:
    """The model with the scanned shapes; a clone if they differ."""
    changed = {
        index: entry.shape
        for index, (entry, port) in enumerate(zip(scanned.inputs, model.inputs, strict=True))
        if entry.shape != port.partial_shape
    }
    if not changed:
        return model
    clone = model.clone()
    try:
        clone.reshape(changed)
    except RuntimeError as failure:
        raise NotSplittable("it cannot be reshaped to the requested shapes", mixes=False) from failure
    return clone


def _size(scanned: ModelInputs, explicit: bool) -> str:
    try:
        return str(candidates(scanned.inputs, explicit)[0].size)
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
