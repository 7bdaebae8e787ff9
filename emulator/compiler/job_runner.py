"""The jobs of a worker: descriptors in, an outcome with descriptors out.

OpenVINO is loaded by the first job that needs it: that takes longer than all else in a compilation that
the cache answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from softnpu.emulator.compiler import compile_job, native_blob, options, query
from softnpu.emulator.compiler.runtime import Product, Runtime
from softnpu.emulator.compiler.stages import (
    COMPILE_STAGES,
    EXPORT_STAGES,
    IMPORT_STAGES,
    QUERY_STAGES,
    Send,
    Stages,
)
from softnpu.emulator.interface.channel import Packet
from softnpu.emulator.interface.messages import CompilerOptionsAre
from softnpu.emulator.links.compiler import CompileJob, ExportJob, ImportJob, Job, OptionsJob, QueryJob


def run(job: Job, packet: Packet, send: Send, runtime: Runtime) -> Product:
    """Does one job. Raises `Refused` if that cannot be, `OSError` if a file cannot be read."""
    match job:
        case CompileJob():
            with _descriptors(packet, 1 + len(job.weights)) as fds:
                return compile_job.run(job, fds, Stages(send, COMPILE_STAGES), runtime)
        case ImportJob():
            with _descriptors(packet, _blob_fds(job)) as fds:
                return native_blob.run_import(job, fds, Stages(send, IMPORT_STAGES), runtime)
        case ExportJob():
            with _descriptors(packet, _blob_fds(job)) as fds:
                return native_blob.run_export(job, fds, Stages(send, EXPORT_STAGES))
        case QueryJob():
            with _descriptors(packet, 1 + len(job.weights)) as fds:
                return query.run(job, fds, Stages(send, QUERY_STAGES), runtime)
        case OptionsJob():
            packet.take_fds(0)
            return Product(_options(job))


def _options(job: OptionsJob) -> CompilerOptionsAre:
    major, minor = options.COMPILER_VERSION
    return CompilerOptionsAre(
        major=major,
        minor=minor,
        opset=options.NEWEST_OPSET,
        options=tuple(options.OPTIONS),
        supported=options.is_supported(job.option, job.value),
    )


def _blob_fds(job: ImportJob | ExportJob) -> int:
    target = isinstance(job, ExportJob) and job.offset is not None
    return 1 + (job.placement_length > 0) + len(job.weights) + target


@contextmanager
def _descriptors(packet: Packet, count: int) -> Iterator[list[int]]:
    """The job's descriptors, closed after the block."""
    fds = packet.take_fds(count)
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)
