"""Digests of what the compiler reads. blake3 with all cores."""

from __future__ import annotations

from collections.abc import Callable

from blake3 import blake3

from softnpu.emulator.blob.weight_space import WeightSpace

_CHUNK = 64 << 20  # large enough for all threads of blake3, small enough to report progress


def sources_digest(space: WeightSpace | None, advance: Callable[[float], None]) -> bytes:
    """Of all bytes of all sources and of where they lie in the space; empty without weights."""
    if space is None:
        return b""
    layout = space.layout
    hasher = blake3(max_threads=blake3.AUTO)
    done = 0
    for start, source in zip(layout.starts, layout.sources, strict=True):
        hasher.update(start.to_bytes(8, "little") + source.length.to_bytes(8, "little"))
        for at in range(start, start + source.length, _CHUNK):
            chunk = space.view[at : min(at + _CHUNK, start + source.length)]
            hasher.update(chunk)
            done += len(chunk)
            advance(done / layout.size)
    return hasher.digest()
