"""The shapes of a kernel's outputs while those of its inputs are open, and of outputs that a run may shrink.

The kernel, or the signature of a function, is asked at the bounds of the inputs. What it says between them
is compared with this at each run, which fails if a kernel is of another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import openvino as ov

from softnpu.emulator.kernels.description import Description
from softnpu.emulator.kernels.errors import Failure, KernelError

_FAR: Final = (37, 1009)
"""Extents that stand for those without a bound."""
Shapes = list[tuple[int, ...]]
"""Of the inputs or outputs of a kernel."""


def outputs(
    described: Description, ask: Callable[[Shapes], Shapes], shapes: Sequence[ov.PartialShape]
) -> list[ov.PartialShape]:
    """Return the shape of each output; `ask` tells them for static inputs.

    Raises `KernelError` if the kernel takes none of those tried.
    """
    if any(shape.rank.is_dynamic for shape in shapes):
        return [ov.PartialShape.dynamic()] * len(described.outputs)
    near: list[Shapes] = []
    far: list[Shapes] = []
    failure: KernelError | None = None
    for is_far, tried in _tried(shapes):
        try:
            told = ask(tried)
        except KernelError as error:
            if error.failure not in (Failure.RETURNED, Failure.SHAPE, Failure.MEMORY):
                raise
            failure = failure or error
        else:
            (far if is_far else near).append(told)
    if failure is not None and not near and not far:
        raise failure
    return [
        _merged([each[at] for each in near], [each[at] for each in far], name in described.dynamic)
        for at, name in enumerate(described.outputs)
    ]


def _tried(shapes: Sequence[ov.PartialShape]) -> Iterator[tuple[bool, Shapes]]:
    """Yield shapes to ask for, and whether they are large in dimensions without a bound.

    All dimensions at their least and most, and each alone at its most: some kernels want equal ones.
    """
    least = [tuple(each.get_min_length() for each in shape) for shape in shapes]
    most = [tuple(each.get_max_length() for each in shape) for shape in shapes]
    yield False, least
    axes = [
        (at, axis) for at, shape in enumerate(shapes) for axis, each in enumerate(shape) if each.is_dynamic
    ]
    if not axes:
        return
    some = [tuple(max(1, extent) for extent in shape) for shape in least]
    full = [tuple(map(max, *pair)) for pair in zip(some, most, strict=True)]
    yield False, some
    yield False, full
    for at, axis in axes:
        yield False, _with(some, [(at, axis)], full[at][axis])
    open_axes = [(at, axis) for at, axis in axes if most[at][axis] < 0]
    for extent in _FAR if open_axes else ():
        yield True, _with(some, open_axes, extent)
        yield True, _with(full, open_axes, extent)
        for each in open_axes:
            yield True, _with(some, [each], extent)


def _with(shapes: Shapes, axes: Sequence[tuple[int, int]], extent: int) -> Shapes:
    """Return shapes with another extent in some places."""
    return [
        tuple(extent if (at, axis) in axes else each for axis, each in enumerate(shape))
        for at, shape in enumerate(shapes)
    ]


def _merged(near: Shapes, far: Shapes, may_shrink: bool) -> ov.PartialShape:
    """Return the shape with room for all of these; those of `far` show which extents have no bound."""
    if len({len(shape) for shape in (*near, *far)}) > 1:
        return ov.PartialShape.dynamic()
    dimensions = []
    for extents in zip(*near, *far, strict=True):
        bound = max(extents[: len(near)], default=0)
        most = max(extents) if max(extents) == min(extents) else bound if max(extents) <= bound else -1
        dimensions.append(ov.Dimension(0 if may_shrink else min(extents), most))
    return ov.PartialShape(dimensions)
