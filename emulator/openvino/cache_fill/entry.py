"""Entries of the engine cache: their compilation, and the checks before they are stored."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Sequence

import numpy as np
import openvino as ov

from softnpu.emulator.blob.constant_digests import constant_digest
from softnpu.emulator.blob.container import ArgumentMeta, BlobReader
from softnpu.emulator.blob.weight_files import file_identities
from softnpu.emulator.blob.weights import offsets_in_space
from softnpu.emulator.common import file_ownership, linux
from softnpu.emulator.links import engine as link
from softnpu.emulator.openvino import loading
from softnpu.emulator.openvino.cache import cpu_cache
from softnpu.emulator.openvino.cache.cpu_cache import CpuCache
from softnpu.emulator.openvino.runtime import core, properties_of, type_of

log = logging.getLogger(__name__)

_ROUNDS = 2


class NotKeptError(Exception):
    """Why an image is not stored."""


def fill(cache: CpuCache, message: link.ImageLoad, fds: Sequence[int], compiled: Callable[[], bytes]) -> None:
    """Store an image, unless present, and the note of its hint. Raises `NotKeptError`.

    `compiled` returns what `compile_entry` does: see `__main__`.
    """
    if any(not _is_safe(fd) for fd in fds):
        raise NotKeptError("others may change its weights")
    before = file_identities(fds)
    reader = BlobReader(memoryview(mmap.mmap(fds[0], message.blob_length, prot=mmap.PROT_READ)))
    meta = reader.metadata()
    properties = properties_of(meta)
    key = cpu_cache.key_of(reader, meta, properties)
    if not key:
        return
    with cache.models.claim(key, 0) as mine:
        if mine and cache.models.load(key) is None:
            payload = compiled()
            if not _has_its_weights(message, fds) or before != file_identities(fds):
                raise NotKeptError("its weights have changed")
            description = {"model": meta.name, "version.openvino": ov.get_version()}
            if cache.models.store(key, payload, description):
                log.info("engine cache: stored '%s', %d bytes", meta.name, len(payload))
    if message.hint:
        cache.note(message.hint, key, properties)


def compile_entry(message: link.ImageLoad, fds: Sequence[int]) -> bytes:
    """Return the entry of an image. Raises `NotKeptError`."""
    image = loading.load(message, fds)
    if image.computes_sizes:
        raise NotKeptError("it computes sizes while it runs, and an import does not tell")
    if image.is_unfused:
        raise NotKeptError("it is compiled in another way than an import would be")
    if not cpu_cache.fits(image.compiled, image.meta):
        raise NotKeptError("inputs and outputs share tensors, or have other shapes than the model declares")
    payload = cpu_cache.encoded(image.compiled)
    imported = memoryview(bytearray(payload))
    kept = cpu_cache.imported(core(), imported, properties_of(image.meta))
    if kept is None or not cpu_cache.fits(kept.compiled, image.meta):
        raise NotKeptError("OpenVINO does not import what it exported")
    if not _equal(image.compiled, kept.compiled, image.meta.inputs):
        raise NotKeptError("the import computes other bits")
    return payload


def _is_safe(fd: int) -> bool:
    """Whether only users trusted with the cache can write this file."""
    return linux.has_seals(fd, linux.SEALS_IMMUTABLE) or not file_ownership.distrust(fd)


def _has_its_weights(message: link.ImageLoad, fds: Sequence[int]) -> bool:
    """Whether all constants, embedded or external, match the digests in the blob."""
    reader, placement, space = loading.opened(message, fds)
    reference = reader.weights_reference()
    actual = offsets_in_space(reference, placement, space.layout, space.embedded)
    return reference is None or all(
        constant_digest(space.view[at : at + constant.length]) == constant.digest
        for constant in reference.constants
        for at in (actual[constant.offset],)
    )


def _equal(compiled: ov.CompiledModel, kept: ov.CompiledModel, inputs: Sequence[ArgumentMeta]) -> bool:
    """Whether both models compute the same bits."""
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
    """Return random elements; integers, which may be indices, are 0 or 1."""
    tensor = ov.Tensor(type_of(argument), ov.Shape(argument.shape))
    if type_of(argument).is_real():
        tensor.data[...] = generator.standard_normal(argument.shape).astype(tensor.data.dtype)
    elif tensor.data.shape == tuple(argument.shape):
        tensor.data[...] = generator.integers(0, 2, argument.shape).astype(tensor.data.dtype)
    else:  # several elements per byte
        tensor.data[...] = 0
    return tensor
