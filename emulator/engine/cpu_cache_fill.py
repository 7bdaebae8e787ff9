"""Put one image into the cache of compiled ones: a program, with PARENT-PID KEY MESSAGE FD... as arguments.

What is stored serves all sessions, so nothing that one of them can change may enter it. Blob and weights are
sealed, or files that only the daemon's user and root can write, who could write the cache as well. All
constants are compared with the digests of the blob after OpenVINO has read them. The import has to compute
the same bits as what was compiled.
"""

from __future__ import annotations

import logging
import mmap
import os
import sys
from collections.abc import Sequence

import numpy as np
import openvino as ov

from softnpu.emulator.blob.constant_digests import constant_digest
from softnpu.emulator.blob.container import ArgumentMeta, BlobReader, Section
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.blob.weights import Placement, offsets_in_space
from softnpu.emulator.common import file_ownership, linux
from softnpu.emulator.engine import cpu_cache, executor
from softnpu.emulator.engine.cpu_cache import CpuCache
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.links import engine as link

log = logging.getLogger(__name__)

_LEAST_PRIORITY = 19
_ROUNDS = 2


def fill(cache: CpuCache, key: str, message: link.ImageLoad, fds: Sequence[int]) -> str:
    """Compile an image and store it as `key`. Returns why it is not stored, empty if it is or was before."""
    if any(not _is_safe(fd) for fd in fds):
        return "others may change its weights"
    before = [_identity(fd) for fd in fds]
    with cache.models.claim(key, 0) as mine:
        if not mine or cache.models.load(key) is not None:
            return ""
        image = executor.load(message, [os.dup(fd) for fd in fds])
        if image.is_unfused:
            return "it is compiled in another way than an import would be"
        if not cpu_cache.fits(image.compiled, image.meta):
            return "inputs and outputs share tensors, or have other shapes than the model declares"
        payload = cpu_cache.encoded(image.compiled, image.indices)
        if not _has_its_weights(message, fds) or before != [_identity(fd) for fd in fds]:
            return "its weights have changed"
        entry = memoryview(bytearray(payload))
        kept = cpu_cache.decoded(executor.core(), entry, image.meta, executor.properties_of(image.meta))
        if kept is None:
            return "OpenVINO does not import what it exported"
        if not _equal(image.compiled, kept.compiled, image.meta.inputs):
            return "the import computes other bits"
        description = {"model": image.meta.name, "version.openvino": ov.get_version()}
        if cache.models.store(key, payload, description):
            log.info("engine cache: stored '%s', %d bytes", image.meta.name, len(payload))
    return ""


def _is_safe(fd: int) -> bool:
    """Whether nobody can change a file who could not change the cache."""
    return linux.has_seals(fd, linux.SEALS_IMMUTABLE) or not file_ownership.distrust(fd)


def _identity(fd: int) -> tuple[int, ...]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _has_its_weights(message: link.ImageLoad, fds: Sequence[int]) -> bool:
    """Whether all constants, in the blob and outside, have the digests in the blob."""
    reader = BlobReader(memoryview(mmap.mmap(fds[0], message.blob_length, prot=mmap.PROT_READ)))
    section = reader.extent(Section.WEIGHTS)
    sources = fds[len(fds) - len(message.weights) :]
    space = WeightSpace(message.weights, sources, "graph", None if section is None else (fds[0], *section))
    placement = None
    if message.placement_length:
        placement = Placement.decode(os.pread(fds[1], message.placement_length, 0))
    reference = reader.weights_reference()
    actual = offsets_in_space(reference, placement, space.layout, space.embedded)
    return reference is None or all(
        constant_digest(space.view[at : at + constant.length]) == constant.digest
        for constant in reference.constants
        for at in (actual[constant.offset],)
    )


def _equal(compiled: ov.CompiledModel, kept: ov.CompiledModel, inputs: Sequence[ArgumentMeta]) -> bool:
    """Whether both compute the same bits."""
    generator = np.random.default_rng(len(inputs))
    for _ in range(_ROUNDS):
        values = [_random(generator, argument) for argument in inputs]
        results = [_results(each, values) for each in (compiled, kept)]
        if results[0] != results[1]:
            return False
    return True


def _results(compiled: ov.CompiledModel, values: Sequence[ov.Tensor]) -> list[bytes]:
    request = compiled.create_infer_request()
    for position, value in enumerate(values):
        request.set_input_tensor(position, value)
    request.infer()
    return [np.ascontiguousarray(tensor.data).tobytes() for tensor in request.output_tensors]


def _random(generator: np.random.Generator, argument: ArgumentMeta) -> ov.Tensor:
    """Zeros and ones for integers, which may be indices."""
    tensor = ov.Tensor(executor.type_of(argument), ov.Shape(argument.shape))
    if executor.type_of(argument).is_real():
        tensor.data[...] = generator.standard_normal(argument.shape).astype(tensor.data.dtype)
    elif tensor.data.shape == tuple(argument.shape):
        tensor.data[...] = generator.integers(0, 2, argument.shape).astype(tensor.data.dtype)
    else:  # several numbers in a byte
        tensor.data[...] = 0
    return tensor


def main(arguments: list[str]) -> int:
    """Fill one entry; 1 if it cannot be."""
    linux.die_with_parent(int(arguments[0]))
    os.nice(_LEAST_PRIORITY)
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    message = link.command_decoder.decode(bytes.fromhex(arguments[2]))
    if not isinstance(message, link.ImageLoad):
        raise RuntimeError(f"the engine sent {type(message).__name__}; expected ImageLoad")
    cache = CpuCache.open()
    if cache is None:
        return 0
    try:
        reason = fill(cache, arguments[1], message, list(map(int, arguments[3:])))
    except (Refused, RuntimeError) as error:
        reason = str(error)
    if reason:
        log.info("engine cache: image %d is not stored: %s", message.image, reason)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
