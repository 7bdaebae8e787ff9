"""What a worker does before it meets the first model: it builds what it needs, and locks itself in.

It then stays as it is, for the same user, the same cache and what it found built. A job that needs more is
for another worker.
"""

from __future__ import annotations

import contextlib
import logging
import os

from softnpu.emulator.arithmetic import library
from softnpu.emulator.arithmetic.settings import PRECISION
from softnpu.emulator.common import lock_in
from softnpu.emulator.common.lock_in import Policy
from softnpu.emulator.compiler import ir_file
from softnpu.emulator.compiler.checked_blobs import CheckedBlobs
from softnpu.emulator.compiler.model_cache.cache import ModelCache
from softnpu.emulator.compiler.stages import Stages
from softnpu.emulator.interface.messages import CacheOptions
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.links.compiler import Confined

log = logging.getLogger(__name__)

_locked: dict[bool, Policy] = {}
"""How this process is locked in, by whether it serves the daemon's own user; one at most."""


_threads_at_start = 1


def begin() -> None:
    """Note what this process is before its first job."""
    global _threads_at_start
    _threads_at_start = lock_in.threads()


class UnfitError(Exception):
    """This worker is locked in for other jobs."""


def enter(job: Confined, cache: CacheOptions | None, precision: str, stages: Stages) -> None:
    """Prepare for a job and lock this process in, if it is not. Raises `UnfitError` if it is otherwise.

    Builds the extension that rounds, if the precision is f16 and it is missing: the engine only loads it.
    That takes some seconds, once for a release of OpenVINO. Refuses with `ERROR_UNSUPPORTED_FEATURE` and the
    next step what cannot be built.
    """
    if not _locked and lock_in.threads() > _threads_at_start:
        raise UnfitError  # a job that was refused before has left a thread: Landlock would not hold for it
    policy = _locked.get(job.own)
    if _locked and (policy is None or (cache is not None and cache.directory not in policy.writable)):
        raise UnfitError
    if precision == PRECISION:
        _have_extension(stages, may_build=not _locked)
    if not _locked:
        policy = _locked[job.own] = _policy(job, cache)
        missing = lock_in.lock_in(policy)
        if missing:
            log.warning("compiler: it is not locked in by %s", ", ".join(missing))


def _have_extension(stages: Stages, *, may_build: bool) -> None:
    try:
        library.find()
    except Refused:
        if not may_build:
            raise UnfitError from None
        library.ensure(lambda: stages.advance(0.0))


def _policy(job: Confined, cache: CacheOptions | None) -> Policy:
    """Caches are made here: a directory that does not exist cannot be named."""
    readable, writable = [str(ir_file.prepared()[1].parent)], []
    with contextlib.suppress(Refused):
        readable.append(os.fspath(library.folder()))
    if job.own:
        checked = CheckedBlobs.folder()
        for options in filter(None, (cache, checked)):
            if ModelCache.open(options) is not None:
                writable.append(options.directory)
    return Policy(tuple(readable), tuple(writable), opens_files=True, dumpable=not job.shared)
