"""Digests of constants, and the check of weights against a blob's digests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blake3 import blake3

from softnpu.emulator.blob.container import ConstantReference, WeightsReference
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

CONSTANT_DIGEST = 16
"""Bytes of a constant's digest."""
_PARALLEL = 1 << 20  # below, starting threads costs more than they save


def constant_digest(data: memoryview) -> bytes:
    """Return the digest of a constant, as a blob stores it."""
    threads = blake3.AUTO if len(data) >= _PARALLEL else 1
    return blake3(data, max_threads=threads).digest(CONSTANT_DIGEST)


def digests_in(space: WeightSpace) -> Callable[[int, int], bytes]:
    """Return the function that digests a constant in a space, by offset and length."""
    return lambda offset, length: constant_digest(space.view[offset : offset + length])


def check_constants(
    reference: WeightsReference,
    offsets: Sequence[int],
    digest_of: Callable[[int, int], bytes],
    subject: str,
    advance: Callable[[float], None],
) -> None:
    """Refuse weights that differ from those of a blob, naming the first constant that differs.

    `offsets` has the offset in the weights space of every constant outside of the blob, `digest_of` digests
    bytes there, by offset and length.
    """
    total = sum(constant.length for constant in reference.outside) or 1
    done = reported = 0
    for constant, offset in zip(reference.outside, offsets, strict=True):
        digest = digest_of(offset, constant.length)
        if digest != constant.digest:
            raise _differs(constant, digest, subject)
        done += constant.length
        if done - reported > total // 64:
            reported = done
            advance(done / total)


def _differs(constant: ConstantReference, digest: bytes, subject: str) -> Refused:
    return refuse(
        ZeResult.ERROR_INVALID_ARGUMENT,
        f"{subject}, weights, constant '{constant.name}'",
        found=f"blake3 {digest.hex()}",
        expected=f"{constant.digest.hex()}",
        hint="these are other weights: use those that the model was compiled with",
    )
