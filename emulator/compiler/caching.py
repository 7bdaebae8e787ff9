"""A worker's own part of a job: the caches of the daemon's user, and the extension that rounds to f16.

All of it handles bytes only; `do` has models inspected in a process without write access.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from blake3 import blake3
from msgspec.structs import replace

from softnpu.emulator.arithmetic import library
from softnpu.emulator.arithmetic.settings import PRECISION
from softnpu.emulator.blob.container import BlobReader
from softnpu.emulator.blob.weight_files import file_identities
from softnpu.emulator.common import linux
from softnpu.emulator.compiler import compile_job, compile_request, files, job_cache, native_blob
from softnpu.emulator.compiler.checked_blobs import CheckedBlobs
from softnpu.emulator.compiler.compile_request import CompiledModel, CompileRequest
from softnpu.emulator.compiler.job_cache import CacheEntry
from softnpu.emulator.compiler.runtime import JobResult
from softnpu.emulator.compiler.stages import Send, Stages
from softnpu.emulator.compiler.weight_records import WeightRecord
from softnpu.emulator.interface import frames
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.links.compiler import Compiled, CompileJob, ImportJob, Job

log = logging.getLogger(__name__)

Do = Callable[[Job, Sequence[int], Send], JobResult]
"""Runs a job in the process that inspects models."""


def compile_model(job: CompileJob, fds: list[int], stages: Stages, do: Do) -> JobResult:
    """Return a model from the cache, or else compile and store it."""
    stages.begin("receive")
    identities = file_identities(fds[1:])
    subject = f"model '{job.name}'"
    _have_extension(compile_request.settings(job, subject).precision, stages)
    options = job_cache.options(job)
    if options is None:
        return _with_files(_digested(do(job, fds, stages.relay)), identities)
    request = CompileRequest.receive(job, fds, subject)
    record = None
    if request.digests is not None:
        record = WeightRecord.find(options, request.digests, fds[1:], identities)
    with ExitStack() as claims:
        entry = job_cache.look_up(request, stages, claims)
        if record is not None:
            record.keep()
        if entry is None:
            made = _digested(do(job, fds, stages.relay))
        elif entry.model is not None:
            made = _digested(compile_job.result(entry.model, request, stages))
        else:
            made = _digested(_build(request, fds, stages, do))
            if file_identities(fds[1:]) != identities:  # perhaps the model of other weights than the key's
                log.warning("%s is not stored: its weights were written to while it was compiled", subject)
            elif job.format:
                made = _stored_later(made, entry, claims.pop_all())
            else:
                made = _stored(made, entry, request, stages)
    return _with_files(made, identities)


def _build(request: CompileRequest, fds: list[int], stages: Stages, do: Do) -> JobResult:
    """Build a model, reusing the digests computed for the key."""
    known = b"" if request.digests is None else request.digests.known()
    if not known or len(fds) >= frames.MAX_FDS:
        return do(request.job, fds, stages.relay)
    digests = linux.sealed_copy("digests", known)
    try:
        return do(replace(request.job, digests_length=len(known)), [*fds, digests], stages.relay)
    finally:
        os.close(digests)


def _digested(made: JobResult, blob_digest: bytes = b"") -> JobResult:
    """Return a model with the digests of its files, since an image of the same digests is taken for it.

    `blob_digest`: that of the blob, if it is known.
    """
    answer, (blob, *placement) = made.answer, made.fds
    assert isinstance(answer, Compiled)
    try:
        digest = blob_digest or _digest(blob, answer.blob_length)
        of_placement = b"".join(_digest(fd, answer.placement_length) for fd in placement)
    except BaseException:
        _close(made)
        raise
    answer = replace(answer, blob_digest=digest, placement_digest=of_placement)
    return JobResult(answer, made.fds, made.after)


def _digest(fd: int, length: int) -> bytes:
    return blake3(files.map_range(fd, 0, length, "compiled model"), max_threads=blake3.AUTO).digest()


def _same_blob(made: JobResult, fd: int, length: int) -> JobResult:
    """Return the result of an import that left the blob unchanged."""
    answer = made.answer
    assert isinstance(answer, Compiled)
    if answer.blob_length != length or not os.path.sameopenfile(made.fds[0], fd):
        _close(made)
        raise _lie("another blob than it was given")
    return made


def _lie(found: str) -> Refused:
    return refuse(
        ZeResult.ERROR_MODULE_BUILD_FAILURE,
        "compiler worker",
        found=f"it sent a bad message: {found}",
        expected="a compiled model",
    )


def _close(made: JobResult) -> None:
    for fd in made.fds:
        os.close(fd)


def _stored(made: JobResult, entry: CacheEntry, request: CompileRequest, stages: Stages) -> JobResult:
    answer = made.answer
    assert isinstance(answer, Compiled)
    try:
        stored = job_cache.STORED if entry.store(_model_in(made)) else ""
    except BaseException:
        _close(made)
        raise
    log = stages.log() if request.settings.logged else ""
    return JobResult(replace(answer, log=log + answer.log + stored), made.fds)


def _stored_later(made: JobResult, entry: CacheEntry, claims: ExitStack) -> JobResult:
    """Store a model once it is answered, with all weights in its blob that takes long; no log says so."""

    def store(model: CompiledModel) -> None:
        with claims:
            try:
                entry.store(model)
            except MemoryError:
                log.warning("model cache: not enough memory to store a model")

    try:
        return JobResult(made.answer, made.fds, partial(store, _model_in(made)))
    except BaseException:
        _close(made)
        raise


def _model_in(made: JobResult) -> CompiledModel:
    answer, (blob, *placement) = made.answer, made.fds
    assert isinstance(answer, Compiled)
    return CompiledModel(
        [files.map_range(blob, 0, answer.blob_length, "blob")],
        b"".join(os.pread(fd, answer.placement_length, 0) for fd in placement),
        answer.origin,
    )


def import_blob(job: ImportJob, fds: list[int], stages: Stages, do: Do) -> JobResult:
    """Check a blob, unless it is recorded as checked."""
    stages.begin("receive")
    identities = file_identities(fds[len(fds) - len(job.weights) :], sealed_is_enough=not job.deferred)
    length = native_blob.without_padding(fds[0], job.blob_length)
    fd = files.immutable(fds[0], length, "blob")
    try:
        data = files.map_range(fd, 0, length, "blob")
        _have_extension(BlobReader(data).metadata().precision, stages)
        digest = blake3(data, max_threads=blake3.AUTO).digest()
        notes = CheckedBlobs(job.platform) if job.remembered else None
        is_checked = notes is not None and notes.has(digest)
        inner = replace(job, blob_length=length, is_checked=is_checked)
        result = _digested(_same_blob(do(inner, [fd, *fds[1:]], stages.relay), fd, length), digest)
    finally:
        os.close(fd)
    if notes is not None and not is_checked and not job.deferred:
        notes.add(digest)
    return _with_files(result, identities)


def _have_extension(precision: str, stages: Stages) -> None:
    """Build the extension for f16 if it is missing: the engine only loads it.

    That takes some seconds, once for a release of OpenVINO. Refuses with `ERROR_UNSUPPORTED_FEATURE` and the
    next step what cannot be built.
    """
    if precision == PRECISION:
        library.ensure(lambda: stages.advance(0.0))


def _with_files(result: JobResult, identities: tuple[bytes, ...]) -> JobResult:
    assert isinstance(result.answer, Compiled)
    return JobResult(replace(result.answer, files=identities), result.fds, result.after)
