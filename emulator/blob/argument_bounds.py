"""The dimensions reported to programs for an argument without a largest shape.

OpenVINO's plugin allocates their product before it knows any shape. So they are as large as a byte limit
allows, and memory of exactly that size is sparse: it gets pages where it is used.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

from softnpu.emulator.blob.container import ArgumentMeta
from softnpu.emulator.interface.records import PAGE

UNBOUNDED_BYTES = "NPU_UNBOUNDED_BYTES"
"""The compiler property for that byte limit."""
_DEFAULT_BYTES = 1 << 38
_LARGEST = 2**31 - 1


def dimensions(meta: ArgumentMeta, config: Mapping[str, str]) -> tuple[int, ...]:
    """Return the shape of an argument, the largest one if it has dynamic dimensions.

    Without a largest one: narrow dimensions have their bounds, and the others share the rest.
    """
    if not meta.unbounded:
        return meta.shape
    ranges = [_range(text) for text in meta.partial_shape.strip("[]").split(",")]
    room = (_chosen(config) or _DEFAULT_BYTES) // meta.alignment
    dims = [0] * len(ranges)
    order = sorted(range(len(ranges)), key=lambda index: (_width(ranges[index]), index))
    for left, index in zip(range(len(order), 0, -1), order, strict=True):
        low, high = ranges[index]
        dims[index] = max(low, min(high, _root(room, left)))
        room //= max(1, dims[index])
    return tuple(dims)


def sparse_sizes(arguments: tuple[ArgumentMeta, ...], config: Mapping[str, str]) -> set[int]:
    """Return the allocation sizes of arguments without a largest shape: exact, and in whole pages."""
    exact_sizes = [
        math.prod(dimensions(meta, config)) * meta.alignment for meta in arguments if meta.unbounded
    ]
    return {size for exact in exact_sizes for size in (exact, -(-exact // PAGE) * PAGE)}


def most_bytes(meta: ArgumentMeta, config: Mapping[str, str]) -> int:
    """Return the maximum bytes for an argument with dynamic dimensions, regardless of its memory's size.

    Beyond the reported size OpenVINO's plugin would allocate new memory, so programs would not find the
    result.
    """
    if not meta.unbounded:
        return meta.byte_size
    return math.prod(dimensions(meta, config)) * meta.alignment if _chosen(config) else sys.maxsize


def _chosen(config: Mapping[str, str]) -> int:
    text = config.get(UNBOUNDED_BYTES, "")
    return int(text) if text.isdecimal() else 0


def _range(text: str) -> tuple[int, int]:
    """Parse a dimension as OpenVINO writes it: `3`, `1..8`, `..8`, `2..`, `?`."""
    low, dots, high = text.strip().replace("?", "..").partition("..")
    largest = high if dots else low
    return int(low or 0), min(_LARGEST, int(largest or _LARGEST))


def _width(limits: tuple[int, int]) -> int:
    return 0 if limits[0] == limits[1] else limits[1]


def _root(value: int, degree: int) -> int:
    """Return the largest number, at least 1, whose power is at most `value`."""
    root: int = max(1, round(value ** (1 / degree)))
    while root > 1 and root**degree > value:
        root -= 1
    while (root + 1) ** degree <= value:
        root += 1
    return root
