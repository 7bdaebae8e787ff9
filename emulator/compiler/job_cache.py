"""The use of the model cache by compile jobs: the parts of the key, the content of an entry.

An entry is the blob and its placement. With a digest over all weights in the key both fit exactly. A
program may give a 64-bit hash of its model instead, which nothing can check: it and the build flags, as they
are spelled, are the key, as with Intel's driver. Then the constants of its weights are compared with the
digests in the blob, and an entry that does not fit is compiled again.
"""

from __future__ import annotations

import struct
from contextlib import ExitStack

from blake3 import blake3

from softnpu.emulator.blob.constant_digests import check_constants
from softnpu.emulator.blob.container import BlobReader, Section
from softnpu.emulator.blob.weights import Placement, offsets_in_space
from softnpu.emulator.compiler.compile_request import CompiledModel, CompileRequest
from softnpu.emulator.compiler.options import COMPILER, PLATFORM, STRICT
from softnpu.emulator.compiler.stages import Stages
from softnpu.emulator.disk_cache import cache_key
from softnpu.emulator.disk_cache.cache import ModelCache
from softnpu.emulator.interface.messages import CacheOptions, GraphFlag
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.links.compiler import CompileJob

STORED = "ZE DynamicCaching cache_status_t: cache_status_t::stored\n"
FOUND = "ZE DynamicCaching cache_status_t: cache_status_t::found\n"
_WAIT_S = 10.0  # less than a client's time-out for a silent daemon
_WAITS = 12
_SIZES = struct.Struct("<QQ")
_RESULT_FLAGS = GraphFlag.ENABLE_PROFILING


class CacheEntry:
    """The entry of one model in the cache; `model` is what `load` has read."""

    def __init__(
        self, cache: ModelCache, key: str, description: dict[str, str], request: CompileRequest
    ) -> None:
        self._cache = cache
        self._key = key
        self._description = description
        self._request = request
        self.model: CompiledModel | None = None

    def load(self, stages: Stages) -> bool:
        """Read the entry; whether there is one that fits."""
        payload = self._cache.load(self._key)
        model = None if payload is None else _decoded(payload)
        self.model = model if model is not None and self._fits(model, stages) else None
        return self.model is not None

    def claim(self, claims: ExitStack, stages: Stages) -> None:
        """Wait for the right to compile; `progress` messages go to the client meanwhile."""
        for turn in range(_WAITS):
            claim = ExitStack()
            if claim.enter_context(self._cache.claim(self._key, _WAIT_S)) or turn + 1 == _WAITS:
                claims.push(claim)
                return
            claim.close()
            stages.advance(turn / _WAITS)

    def store(self, model: CompiledModel) -> bool:
        """Store a compiled model; whether that was possible."""
        sizes = _SIZES.pack(model.length, len(model.placement))
        payload = b"".join([sizes, *model.parts, model.placement])
        return self._cache.store(self._key, payload, self._description)

    def _fits(self, model: CompiledModel, stages: Stages) -> bool:
        """Whether the blob can be read and, if only a hash stands for the model, these are its weights."""
        try:
            reader = BlobReader(model.parts[0])
            if self._request.job.input_hash is None:
                return True
            reference = reader.weights_reference()
            if reference is None or not reference.outside:
                return True
            digests = self._request.digests
            if digests is None:
                return False
            placement = Placement.decode(model.placement)
            _, embedded = reader.extent(Section.WEIGHTS) or (0, 0)
            offsets_in_space(reference, placement, digests.space.layout, embedded)
            check_constants(reference, placement.offsets, digests.of, self._request.subject, stages.advance)
        except Refused:
            return False
        return True


def options(job: CompileJob) -> CacheOptions | None:
    """Return the cache that a job may use; None if there is none or the job bypasses it."""
    bypassed = job.flags & (GraphFlag.DISABLE_CACHING | GraphFlag.SECURE_COMPILE)
    return None if bypassed else job.cache


def look_up(request: CompileRequest, stages: Stages, claims: ExitStack) -> CacheEntry | None:
    """Return the entry of a job; None for a job without a cache.

    If the cache has no model, `claims` holds the right to compile until it is closed.
    """
    cache_options = options(request.job)
    if cache_options is None:
        return None
    cache = ModelCache.open(cache_options)
    if cache is None:
        return None
    stages.begin("cache")
    digest, configuration = key_parts(request, stages)
    key = cache.key(digest, configuration.encoded())
    description = configuration.description() | {"model": request.job.name}
    entry = CacheEntry(cache, key, description, request)
    if not entry.load(stages):
        entry.claim(claims, stages)
        entry.load(stages)  # another process may have compiled it meanwhile
    if entry.model is not None:
        stages.remark(FOUND)
    return entry


def key_parts(request: CompileRequest, stages: Stages) -> tuple[bytes, cache_key.Configuration]:
    """Return the parts of a job's key: the digest of its model, and everything else."""
    return _input_digest(request, stages), _configuration(request)


def _input_digest(request: CompileRequest, stages: Stages) -> bytes:
    input_hash = request.job.input_hash
    if input_hash is not None:
        return blake3(b"input hash" + struct.pack("<Q", input_hash & 0xFFFFFFFFFFFFFFFF)).digest()
    digests = request.digests
    weights = b"" if digests is None else digests.of_model(bytes(request.xml), stages.advance)
    return cache_key.input_digest(request.xml, weights)


def _configuration(request: CompileRequest) -> cache_key.Configuration:
    # the platform has a part of its own, where it is spelled in one way
    values = {name: value for name, value in request.settings.values.items() if name != PLATFORM}
    if request.job.format:
        values["format"] = request.job.format
    if request.settings.strict:
        from softnpu.emulator.prediction.support import rules  # late: a table that is read

        values[STRICT] = f"YES by rules {rules.VERSION}"
    hashed = request.job.input_hash is not None
    if hashed:
        values["build flags"] = request.job.build_flags
    return cache_key.Configuration(
        name="" if hashed else request.job.name,
        platform=request.settings.platform,
        compiler=COMPILER,
        config=values | request.flags.parts(),
        shapes=request.job.shapes,
        flags=request.job.flags & _RESULT_FLAGS,
    )


def _decoded(payload: memoryview) -> CompiledModel | None:
    if len(payload) < _SIZES.size:
        return None
    blob_size, placement_size = _SIZES.unpack_from(payload)
    if _SIZES.size + blob_size + placement_size != len(payload):
        return None
    blob = payload[_SIZES.size : _SIZES.size + blob_size]
    return CompiledModel([blob], bytes(payload[_SIZES.size + blob_size :]), "cache")
