"""Splits a model into samples: finds the first provable axis, and the ports on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import openvino as ov

from softnpu.emulator.blob.container import GraphMeta
from softnpu.emulator.interface.commands import MAX_DIMS
from softnpu.plugin.batch.axes import (
    Candidate,
    Evidence,
    NotSplittable,
    batch_axis,
    candidates,
    is_plausible,
    only_batch_is_dynamic,
)
from softnpu.plugin.batch.input_scan import InputInfo, ModelInputs
from softnpu.plugin.batch.tracking import Tracked, track, with_dimension
from softnpu.plugin.signature import PortSpec, Signature, signature_of


@dataclass(frozen=True)
class BatchedPort:
    """One port of a split model. `axis` is None for an input shared by all samples.

    `sample` is the shape of one sample, so `sample[axis]` is its length on the batch axis.
    """

    axis: int | None
    sample: tuple[int, ...]

    @property
    def needs_strides(self) -> bool:
        """Whether one sample is not contiguous."""
        return self.axis is not None and math.prod(self.sample[: self.axis]) != 1


@dataclass(frozen=True)
class Split:
    """A split of a model: its batch, all inputs, then all outputs; `text` is for the log."""

    size: ov.Dimension
    inputs: tuple[BatchedPort, ...]
    outputs: tuple[BatchedPort, ...]
    text: str = field(default="", compare=False)

    @property
    def ports(self) -> tuple[BatchedPort, ...]:
        """All inputs, then all outputs."""
        return self.inputs + self.outputs

    @property
    def strided(self) -> tuple[str, ...]:
        """The numbers of the ports that need strides."""
        return tuple(str(index) for index, port in enumerate(self.ports) if port.needs_strides)

    def shapes(
        self, inputs: Sequence[InputInfo], requested: Mapping[str, Sequence[int]] | None
    ) -> dict[str, Sequence[int]]:
        """Return shapes for the compiler: the requested ones, and those of one sample."""
        shapes = dict(requested or {})
        for entry, port in zip(inputs, self.inputs, strict=True):
            if port.axis is not None:
                name = next((name for name in entry.names if name in shapes), entry.name)
                shapes[name] = port.sample
        return shapes

    def signature(self, meta: GraphMeta) -> Signature:
        """Return the ports of a compiled sample, with the batch."""
        sample = signature_of(meta)
        ports = [_port(port, split, self.size) for port, split in zip(sample.ports, self.ports, strict=True)]
        count = len(sample.inputs)
        return msgspec.structs.replace(
            sample, inputs=tuple(ports[:count]), outputs=tuple(ports[count:]), batch=str(self.size)
        )


def find_split(model: ov.Model, scanned: ModelInputs, explicit: bool) -> Split:
    """Split `model`, whose inputs are `scanned`. Raises `NotSplittable`.

    `explicit`: the user requests it, and is trusted where a layout names the axis.
    """
    candidate, tracked = _first_splittable(model, scanned, explicit)
    one = ov.Dimension(1)
    inputs = tuple(
        BatchedPort(
            axis, tuple((entry.shape if axis is None else with_dimension(entry.shape, axis, one)).to_shape())
        )
        for entry, axis in zip(scanned.inputs, candidate.axes, strict=True)
    )
    outputs = tuple(BatchedPort(axis, sample) for axis, sample in tracked.outputs)
    axes = [f"axis {port.axis} of '{entry.name}'" for entry, port in zip(scanned.inputs, inputs, strict=True)
            if port.axis is not None]  # fmt: skip
    axes += [f"axis {port.axis} of output {index}" for index, port in enumerate(outputs)]
    text = f"{', '.join(axes)}, by {candidate.evidence.value}"
    if tracked.trusted:
        text += f"; trusting the layouts that samples are independent in {', '.join(tracked.trusted)}"
    split = Split(candidate.size, inputs, outputs, text)
    _check_strides(split, scanned)
    return split


def _check_strides(split: Split, scanned: ModelInputs) -> None:
    """Raise `NotSplittable` if a port needs more strides than a command can have."""
    for index, port in enumerate(split.ports):
        if port.needs_strides and len(port.sample) > MAX_DIMS:
            count = len(split.inputs)
            name = f"input '{scanned.inputs[index].name}'" if index < count else f"output {index - count}"
            raise NotSplittable(
                f"a sample of {name} is not contiguous, and it has more than {MAX_DIMS} dimensions",
                mixes=False,
            )


def _first_splittable(model: ov.Model, scanned: ModelInputs, explicit: bool) -> tuple[Candidate, Tracked]:
    """Return the first splittable candidate. Raises `NotSplittable` with the reason of the first one."""
    refusal: NotSplittable | None = None
    for candidate in candidates(scanned.inputs, explicit):
        if not is_plausible(candidate, scanned.has_batch_layer, explicit):
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
            # a layout names the axis; independence of samples on it still needs a proof
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
    """Raise `NotSplittable` if the samples of an output are not on the axis named by its layout."""
    for index, (port, (axis, _)) in enumerate(zip(model.outputs, tracked.outputs, strict=True)):
        named = batch_axis(port.node.layout, port.partial_shape)
        if named is not None and named != axis:
            raise NotSplittable(
                f"output {index} has its samples on axis {axis}, and on axis {named} by its layout",
                mixes=True,
            )


def _shaped(model: ov.Model, scanned: ModelInputs) -> ov.Model:
    """Return the model with the scanned shapes; a clone if they differ."""
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
