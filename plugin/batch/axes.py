"""Candidates for the axis of a model's batch: by layouts, by a dynamic dimension, by convention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import msgspec
import openvino as ov
from openvino import layout_helpers

from softnpu.plugin.batch.input_scan import InputInfo

_ONE = ov.Dimension(1)


class NotSplittable(Exception):
    """The model cannot be split into samples; the text is the reason.

    `mixes`: samples depend on each other; otherwise an operation is unknown or the shapes do not allow it.
    """

    def __init__(self, reason: str, mixes: bool) -> None:
        super().__init__(reason)
        self.mixes = mixes


class Evidence(Enum):
    """The reason for an axis."""

    LAYOUT = "its layout"
    DYNAMIC = "its dynamic dimension"
    FIRST = "its position"


class Candidate(msgspec.Struct, frozen=True):
    """A batch: for each input its axis (None: shared by all samples), and the dimension in the model."""

    axes: tuple[int | None, ...]
    size: ov.Dimension
    evidence: Evidence


def candidates(inputs: Sequence[InputInfo], explicit: bool) -> list[Candidate]:
    """Return possible batches, the most likely first; none when the model has no batch.

    `explicit`: the user requests a split, so a dynamic dimension counts on any axis.
    Raises `NotSplittable` for contradictory layouts and for dynamic ranks.
    """
    if any(entry.shape.rank.is_dynamic for entry in inputs):
        if explicit or any(_named(entry) is not None for entry in inputs):
            raise NotSplittable("an input has a dynamic rank", mixes=False)
        return []
    named = [_named(entry) for entry in inputs]
    if any(axis is not None for axis in named):
        return list(_by_layout(inputs, named))
    if any(entry.shape.is_dynamic for entry in inputs):
        return list(_by_dynamic_dimension(inputs, explicit))
    return list(_by_convention(inputs))


def only_batch_is_dynamic(inputs: Sequence[InputInfo], candidate: Candidate) -> None:
    """Raise `NotSplittable` when another dimension is dynamic too: samples would differ in shape."""
    for entry, batch in zip(inputs, candidate.axes, strict=True):
        for axis, dimension in enumerate(entry.shape):
            if dimension.is_dynamic and axis != batch:
                raise NotSplittable(f"axis {axis} of input '{entry.name}' is dynamic too", mixes=False)


def batch_axis(layout: ov.Layout, shape: ov.PartialShape) -> int | None:
    """Return the axis that a layout names `N`; None if it names none."""
    if layout.empty or not layout_helpers.has_batch(layout):
        return None
    index = layout_helpers.batch_idx(layout)
    return int(index if index >= 0 or shape.rank.is_dynamic else index + len(shape))


def _named(entry: InputInfo) -> int | None:
    return batch_axis(entry.layout, entry.shape)


def _by_layout(inputs: Sequence[InputInfo], named: Sequence[int | None]) -> Iterator[Candidate]:
    sizes = {
        entry.name: entry.shape[axis] for entry, axis in zip(inputs, named, strict=True) if axis is not None
    }
    size = next(iter(sizes.values()))
    if any(other != size for other in sizes.values()):
        batches = ", ".join(f"{dimension} of '{name}'" for name, dimension in sizes.items())
        raise NotSplittable(f"by their layouts inputs have different batches: {batches}", mixes=False)
    if size == _ONE:
        return
    # an input without a layout but with the same first dimension probably has the batch too
    also = tuple(
        0 if axis is None and entry.layout.empty and len(entry.shape) and entry.shape[0] == size else axis
        for entry, axis in zip(inputs, named, strict=True)
    )
    if also != tuple(named):
        yield Candidate(also, size, Evidence.LAYOUT)
    yield Candidate(tuple(named), size, Evidence.LAYOUT)


def _by_dynamic_dimension(inputs: Sequence[InputInfo], explicit: bool) -> Iterator[Candidate]:
    sizes = [entry.shape[0] for entry in inputs if len(entry.shape) and entry.shape[0].is_dynamic]
    if sizes:
        axes = tuple(0 if len(entry.shape) and entry.shape[0].is_dynamic else None for entry in inputs)
        if any(size != sizes[0] for size in sizes):
            bounds = ", ".join(map(str, sizes))
            raise NotSplittable(
                f"the first dimensions of inputs have different bounds: {bounds}", mixes=False
            )
        yield Candidate(axes, sizes[0], Evidence.DYNAMIC)
    elif explicit:
        axes = tuple(
            next((axis for axis, dimension in enumerate(entry.shape) if dimension.is_dynamic), None)
            for entry in inputs
        )
        sizes = [entry.shape[axis] for entry, axis in zip(inputs, axes, strict=True) if axis is not None]
        yield Candidate(axes, sizes[0], Evidence.DYNAMIC)


def _by_convention(inputs: Sequence[InputInfo]) -> Iterator[Candidate]:
    sizes = [entry.shape[0] for entry in inputs if len(entry.shape) > 1 and entry.shape[0] != _ONE]
    for at, size in enumerate(sizes):
        if size not in sizes[:at]:
            axes = tuple(0 if len(entry.shape) > 1 and entry.shape[0] == size else None for entry in inputs)
            yield Candidate(axes, size, Evidence.FIRST)


def is_plausible(candidate: Candidate, has_batch_layer: bool, explicit: bool) -> bool:
    """Return whether a candidate may be a batch. Position alone proves nothing: rows are not samples."""
    return explicit or has_batch_layer or candidate.evidence is not Evidence.FIRST
