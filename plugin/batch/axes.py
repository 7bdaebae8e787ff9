"""Where the batch of a model may be: by layouts, by a dynamic dimension, by convention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import openvino as ov
from openvino import layout_helpers

from softnpu.plugin.batch.input_scan import InputLook
from softnpu.plugin.batch.tracking import NotSplittable

_ONE = ov.Dimension(1)


class Evidence(Enum):
    """What speaks for an axis."""

    LAYOUT = "its layout"
    DYNAMIC = "its dynamic dimension"
    FIRST = "its position"


@dataclass(frozen=True)
class Candidate:
    """A batch: for each input its axis (None: shared by all samples), and the dimension in the model."""

    axes: tuple[int | None, ...]
    size: ov.Dimension
    evidence: Evidence


def candidates(looks: Sequence[InputLook], explicit: bool) -> list[Candidate]:
    """What may be the batch, the likeliest first; none when the model has no batch.

    `explicit`: the user asks for it, so that a dynamic dimension anywhere is worth a try. Raises
    `NotSplittable` for layouts that contradict each other and for dynamic ranks.
    """
    if any(look.shape.rank.is_dynamic for look in looks):
        if explicit or any(_named(look) is not None for look in looks):
            raise NotSplittable("an input has a dynamic rank", mixes=False)
        return []
    named = [_named(look) for look in looks]
    if any(axis is not None for axis in named):
        return list(_by_layout(looks, named))
    if any(look.shape.is_dynamic for look in looks):
        return list(_by_dynamic_dimension(looks, explicit))
    return list(_by_convention(looks))


def only_batch_is_dynamic(looks: Sequence[InputLook], candidate: Candidate) -> None:
    """Raises `NotSplittable` when another dimension is dynamic as well: samples would differ in shape."""
    for look, batch in zip(looks, candidate.axes, strict=True):
        for axis, dimension in enumerate(look.shape):
            if dimension.is_dynamic and axis != batch:
                raise NotSplittable(f"axis {axis} of input '{look.name}' is dynamic too", mixes=False)


def batch_axis(layout: ov.Layout, shape: ov.PartialShape) -> int | None:
    """The axis that a layout names `N`; None if it names none."""
    if layout.empty or not layout_helpers.has_batch(layout):
        return None
    index = layout_helpers.batch_idx(layout)
    return int(index if index >= 0 or shape.rank.is_dynamic else index + len(shape))


def _named(look: InputLook) -> int | None:
    return batch_axis(look.layout, look.shape)


def _by_layout(looks: Sequence[InputLook], named: Sequence[int | None]) -> Iterator[Candidate]:
    sizes = {look.name: look.shape[axis] for look, axis in zip(looks, named, strict=True) if axis is not None}
    size = next(iter(sizes.values()))
    if any(other != size for other in sizes.values()):
        found = ", ".join(f"{dimension} of '{name}'" for name, dimension in sizes.items())
        raise NotSplittable(f"by their layouts inputs have different batches: {found}", mixes=False)
    if size == _ONE:
        return
    # without a layout of its own, the same dimension in front is the same batch, if that can be right
    also = tuple(
        0 if axis is None and look.layout.empty and len(look.shape) and look.shape[0] == size else axis
        for look, axis in zip(looks, named, strict=True)
    )
    if also != tuple(named):
        yield Candidate(also, size, Evidence.LAYOUT)
    yield Candidate(tuple(named), size, Evidence.LAYOUT)


def _by_dynamic_dimension(looks: Sequence[InputLook], explicit: bool) -> Iterator[Candidate]:
    sizes = [look.shape[0] for look in looks if len(look.shape) and look.shape[0].is_dynamic]
    if sizes:
        axes = tuple(0 if len(look.shape) and look.shape[0].is_dynamic else None for look in looks)
        if any(size != sizes[0] for size in sizes):
            found = ", ".join(map(str, sizes))
            raise NotSplittable(f"the first dimensions of inputs have different bounds: {found}", mixes=False)
        yield Candidate(axes, sizes[0], Evidence.DYNAMIC)
    elif explicit:
        found_axes = tuple(
            next((axis for axis, dimension in enumerate(look.shape) if dimension.is_dynamic), None)
            for look in looks
        )
        sizes = [look.shape[axis] for look, axis in zip(looks, found_axes, strict=True) if axis is not None]
        yield Candidate(found_axes, sizes[0], Evidence.DYNAMIC)


def _by_convention(looks: Sequence[InputLook]) -> Iterator[Candidate]:
    sizes = [look.shape[0] for look in looks if len(look.shape) > 1 and look.shape[0] != _ONE]
    for at, size in enumerate(sizes):
        if size not in sizes[:at]:
            axes = tuple(0 if len(look.shape) > 1 and look.shape[0] == size else None for look in looks)
            yield Candidate(axes, size, Evidence.FIRST)
