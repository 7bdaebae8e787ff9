"""The loop of the worker: one job after the other, each answered with progress and then one outcome.

OpenVINO is loaded by the first job that needs it: that takes longer than all else in a compilation that the
cache answers. A worker that has no job for a while loads it before, where there is memory enough.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from msgspec.structs import replace

from softnpu.emulator import compiler
from softnpu.emulator.blob.weight_files import file_identities
from softnpu.emulator.common import failpoints
from softnpu.emulator.common.untrusted_fds import close_untrusted
from softnpu.emulator.compiler import checked_blobs, compile_job, confinement, native_blob, options, query
from softnpu.emulator.compiler.error_info import not_utf8, out_of_memory, system_error
from softnpu.emulator.compiler.model_cache import cache_key
from softnpu.emulator.compiler.runtime import JobResult, Runtime
from softnpu.emulator.compiler.stages import (
    COMPILE_STAGES,
    EXPORT_STAGES,
    IMPORT_STAGES,
    QUERY_STAGES,
    Send,
    Stages,
)
from softnpu.emulator.interface import message, messages
from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.interface.result import ErrorInfo, Refused
from softnpu.emulator.links.compiler import (
    Compiled,
    CompileJob,
    ExportJob,
    ImportJob,
    Job,
    OptionsJob,
    QueryJob,
    Unfit,
    job_decoder,
)

_NEEDED_FDS = 32
_SPARE_S = 1.0  # who starts a daemon, or has it start another worker, goes first
_ENOUGH_MEMORY = 4 << 30  # what a worker takes with OpenVINO is little beside it
_STEPS: dict[type[messages.Message], str] = {
    CompileJob: "compiler.compile",
    ImportJob: "compiler.import",
    ExportJob: "compiler.export",
}
"""Jobs with a fail-point."""


def serve(channel: Channel) -> None:
    """Answer jobs until the other side closes the channel.

    Any exception but a refusal, a failed system call and a lack of memory is a defect of the worker: it ends
    the process with its traceback, and the supervisor fails the one job.
    """
    cache_key.prepare()
    checked_blobs.code_digest()
    runtime = Runtime()
    if not channel.wait_readable(_SPARE_S) and _memory_is_enough():
        runtime.load()
        importlib.import_module(f"{compiler.__name__}.pipeline")
    confinement.begin()
    while True:
        try:
            packet = channel.receive()
            if packet is None:
                return
            with packet:
                _answer(channel, packet, runtime)
        except ConnectionError:
            return  # the supervisor went away in the middle of an answer
        except Refused as error:
            _fail(channel, 0, error.info)  # a malformed frame has no request id


def _memory_is_enough() -> bool:
    import psutil

    return int(psutil.virtual_memory().available) >= _ENOUGH_MEMORY


def _answer(channel: Channel, packet: Packet, runtime: Runtime) -> None:
    outcome = _outcome(channel, packet, runtime)
    if isinstance(outcome, ErrorInfo):
        lack = _lack_of_descriptors()
        _fail(channel, packet.request, outcome if lack is None else system_error("compile job", lack))
        if lack is not None:
            # it would fail every job, the next worker may not; an orderly end would open files and may hang
            os._exit(3)
        return
    try:
        channel.send(packet.request, messages.encode(outcome.answer), outcome.fds)
    finally:
        for fd in outcome.fds:
            os.close(fd)


def _lack_of_descriptors() -> OSError | None:
    """Why this worker can hardly open a file any more; None if it can."""
    fds: list[int] = []
    try:
        for _ in range(_NEEDED_FDS):
            fds.append(os.dup(0))
    except OSError as error:
        return error
    finally:
        for fd in fds:
            os.close(fd)
    return None


def _outcome(channel: Channel, packet: Packet, runtime: Runtime) -> JobResult | ErrorInfo:
    """Run the job. The exception is gone when this returns, and with it what its frames kept alive."""
    subject = "compile job"
    report = partial(_report, channel, packet.request)
    try:
        job = message.decode(job_decoder, packet.body, subject, "a job of the compiler")
        subject = _subject(job)
        if failpoints.active is None:
            return _run(job, packet, report, runtime)
        return _run_with_failpoints(job, packet, report, runtime)
    except Refused as error:
        return error.info
    except confinement.UnfitError:
        return JobResult(Unfit())
    except MemoryError:
        return out_of_memory(subject).info
    except UnicodeDecodeError as error:  # raised wherever OpenVINO first shows a name of the model
        return not_utf8(subject, error)
    except ConnectionError:
        raise
    except OSError as error:
        return system_error(subject, error)


def _run_with_failpoints(job: Job, packet: Packet, report: Send, runtime: Runtime) -> JobResult:
    step = _STEPS.get(type(job))
    if step is not None:
        failpoints.hit(step)
    result = _run(job, packet, report, runtime)
    try:
        failpoints.hit("compiler.completing")
    except BaseException:
        for fd in result.fds:
            os.close(fd)
        raise
    return result


def _run(job: Job, packet: Packet, send: Send, runtime: Runtime) -> JobResult:
    """Do one job. Raises `Refused` if that cannot be, `OSError` if a file cannot be read."""
    match job:
        case CompileJob():
            with _descriptors(packet, 1 + len(job.weights)) as fds:
                files = file_identities(fds[1:])
                result = compile_job.run(job, fds, Stages(send, COMPILE_STAGES), runtime)
                return _with_files(result, files)
        case ImportJob():
            with _descriptors(packet, _blob_fds(job)) as fds:
                files = file_identities(fds[len(fds) - len(job.weights) :], sealed_is_enough=not job.deferred)
                result = native_blob.run_import(job, fds, Stages(send, IMPORT_STAGES), runtime)
                return _with_files(result, files)
        case ExportJob():
            with _descriptors(packet, _blob_fds(job)) as fds:
                return native_blob.run_export(job, fds, Stages(send, EXPORT_STAGES))
        case QueryJob():
            with _descriptors(packet, 1 + len(job.weights)) as fds:
                return query.run(job, fds, Stages(send, QUERY_STAGES), runtime)
        case OptionsJob():
            packet.take_fds(0)
            return JobResult(_options(job, runtime))


def _with_files(result: JobResult, files: tuple[bytes, ...]) -> JobResult:
    assert isinstance(result.answer, Compiled)
    return JobResult(replace(result.answer, files=files), result.fds)


def _options(job: OptionsJob, runtime: Runtime) -> messages.CompilerOptionsAnswer:
    major, minor = options.COMPILER_VERSION
    return messages.CompilerOptionsAnswer(
        major=major,
        minor=minor,
        opset=options.NEWEST_OPSET,
        options=tuple(options.OPTIONS),
        supported=options.is_supported(job.option, job.value, job.platform, lambda: runtime.capabilities),
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
        close_untrusted(fds)


def _subject(job: Job) -> str:
    return f"model '{job.name}'" if isinstance(job, CompileJob | QueryJob) else "blob"


def _report(channel: Channel, request: int, stage: str, done: float) -> None:
    channel.send(request, messages.encode(messages.Progress(stage=stage, done=done)))


def _fail(channel: Channel, request: int, info: ErrorInfo) -> None:
    channel.send(request, messages.encode(messages.Failed(info=info.shortened())))
