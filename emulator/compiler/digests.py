"""Digests of the weights that the compiler reads. blake3 with all cores."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from blake3 import blake3

from softnpu.emulator.blob.constant_digests import constant_digest
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.blob.weights import const_layers

LARGE = 64 << 20
"""Bytes of weights from which on the digests of constants are worth looking for them in the XML."""

_decoder = msgspec.msgpack.Decoder(list[tuple[tuple[int, int], bytes]])


class WeightDigests:
    """The digests of constants in a weights space: each is computed once, for the cache and for the blob."""

    def __init__(self, space: WeightSpace) -> None:
        self.space = space
        self._known: dict[tuple[int, int], bytes] = {}

    def of(self, offset: int, length: int) -> bytes:
        """Return the digest of one constant."""
        digest = self._known.get((offset, length))
        if digest is None:
            digest = constant_digest(self.space.view[offset : offset + length])
            self._known[offset, length] = digest
        return digest

    def known(self) -> bytes:
        """Return the digests that were computed, for `learn` of another process; empty if there is none."""
        return msgspec.msgpack.encode(list(self._known.items())) if self._known else b""

    def learn(self, known: bytes) -> None:
        """Take over digests of constants of the same weights."""
        self._known.update(_decoder.decode(known))

    def of_model(self, xml: bytes, advance: Callable[[float], None]) -> bytes:
        """Return the digest of a model's weights: of all sources, or of its constants if they are large."""
        layout = self.space.layout
        hasher = blake3(max_threads=blake3.AUTO)
        for start, source in zip(layout.starts, layout.sources, strict=True):
            hasher.update(start.to_bytes(8, "little") + source.length.to_bytes(8, "little"))
        if layout.size < LARGE:
            for start, source in zip(layout.starts, layout.sources, strict=True):
                hasher.update(self.space.view[start : start + source.length])
            return hasher.digest()
        layers = const_layers(xml)  # the rest of an IR is text
        total = sum(layer.size for layer in layers) or 1
        done = reported = 0
        for layer in layers:
            hasher.update(self.of(layer.offset, layer.size))
            done += layer.size
            if done - reported > total // 64:
                reported = done
                advance(done / total)
        return hasher.digest()
