"""The process of a worker that meets models: it has OpenVINO, memory and the descriptors of a job, no more.

It is forked before the worker has seen a job, and locks itself in before it looks at one: a model may take it
over. It loads OpenVINO when there is no job for a while and memory enough, else with the first that needs it.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import resource
import signal
import socket
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from softnpu.emulator import compiler
from softnpu.emulator.common import failpoints, linux, lock_in
from softnpu.emulator.common.untrusted_fds import close_untrusted
from softnpu.emulator.compiler import compile_job, ir_file, native_blob, options, query
from softnpu.emulator.compiler.job_loop import LACK, answer_next, lack_of_descriptors
from softnpu.emulator.compiler.runtime import JobResult, Runtime
from softnpu.emulator.compiler.stages import (
    COMPILE_STAGES,
    EXPORT_STAGES,
    IMPORT_STAGES,
    QUERY_STAGES,
    Send,
    Stages,
)
from softnpu.emulator.interface import messages
from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.links import bounds
from softnpu.emulator.links.compiler import (
    CompileJob,
    ExportJob,
    ImportJob,
    Job,
    OptionsJob,
    Outcome,
    QueryJob,
    lengths_of,
    outcome_decoder,
)

log = logging.getLogger(__name__)

_SPARE_S = 1.0  # who starts a daemon, or has it start another worker, goes first
_ENOUGH_MEMORY = 4 << 30  # what a worker takes with OpenVINO is little beside it
_STEPS: dict[type[messages.Message], str] = {
    CompileJob: "compiler.compile",
    ImportJob: "compiler.import",
    ExportJob: "compiler.export",
}
"""Jobs with a fail-point."""


class Confined:
    """The process, seen from the worker, which ends as it does. It does one job at a time."""

    def __init__(self, outside: Channel) -> None:
        """Fork it, without the worker's channel `outside`; this process must not have threads yet."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            ours.close()
            outside.close()
            _run(Channel(theirs), parent)
        theirs.close()
        self._channel = Channel(ours)
        self._code: int | None = None

    def fileno(self) -> int:
        """What is readable between two jobs when it has ended."""
        return self._channel.fileno()

    def do(self, job: Job, fds: Sequence[int], send: Send) -> JobResult:
        """Have it do a job. Raises `Refused` as it did, or because it sent what none of ours would."""
        try:
            self._channel.send(0, messages.encode(job), fds)
        except ConnectionError:
            self.end_likewise()
        while True:
            try:
                outcome, made = self._receive(job)
            except (Refused, bounds.BadMessageError) as error:
                self._status()  # a model has taken it over: it gets no other job
                raise refuse(
                    ZeResult.ERROR_MODULE_BUILD_FAILURE,
                    "compiler worker",
                    found=f"it sent a bad message: {error}",
                    expected="a compiled model",
                ) from error
            if isinstance(outcome, messages.Failed):
                raise Refused(outcome.info)
            if not isinstance(outcome, messages.Progress):
                return JobResult(outcome, made)
            send(outcome.stage, outcome.done)

    def _receive(self, job: Job) -> tuple[Outcome, tuple[int, ...]]:
        packet = self._channel.receive()
        if packet is None:
            if self._status() == LACK:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self.end_likewise()
        with packet:
            outcome = bounds.decode(outcome_decoder, packet.body)
            lengths = lengths_of(outcome, job)
            made = packet.take_fds(len(lengths))
        try:
            bounds.check_files(made, lengths)
        except BaseException:
            close_untrusted(made)
            raise
        return outcome, tuple(made)

    def end_likewise(self) -> NoReturn:
        """End this process in the way in which that one has ended; if it has not, it is killed."""
        code = self._status()
        if code < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
            if code != -signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)

    def close(self) -> None:
        """End it, and wait for that."""
        self._channel.close()
        os.waitpid(self.pid, 0)

    def _status(self) -> int:
        """How it has ended, a signal as a negative number."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code


def _run(channel: Channel, parent: int) -> NoReturn:
    """What the process does; it never returns into what it was forked from."""
    code = 1
    try:
        linux.die_with_parent(parent)
        _serve(channel)
        code = 0
    except BaseException:  # noqa: BLE001  # above this frame nothing is of this process
        traceback.print_exc()
    finally:
        os._exit(code)


def _serve(channel: Channel) -> None:
    runtime, confined = Runtime(), False
    if not channel.wait_readable(_SPARE_S) and _memory_is_enough():
        runtime.load()
        importlib.import_module(f"{compiler.__name__}.pipeline")

    def run(job: Job, packet: Packet, send: Send) -> JobResult:
        nonlocal confined
        if not confined:
            confined = True
            _lock_in(job.shared)
        try:
            return _do(job, packet, send, runtime)
        except Exception:
            if lack_of_descriptors() is not None:
                os._exit(LACK)
            raise

    while answer_next(channel, run):
        pass


def _memory_is_enough() -> bool:
    import psutil

    return int(psutil.virtual_memory().available) >= _ENOUGH_MEMORY


def _lock_in(shared: bool) -> None:
    readable = (str(ir_file.prepared()[1].parent),)
    missing = lock_in.lock_in(lock_in.Policy(readable, opens_files=True, dumpable=not shared))
    if missing:
        log.warning("compiler: it is not locked in by %s", ", ".join(missing))


def _do(job: Job, packet: Packet, send: Send, runtime: Runtime) -> JobResult:
    if failpoints.active is None:
        return _do_plainly(job, packet, send, runtime)
    step = _STEPS.get(type(job))
    if step is not None:
        failpoints.hit(step)
    result = _do_plainly(job, packet, send, runtime)
    try:
        failpoints.hit("compiler.completing")
    except BaseException:
        for fd in result.fds:
            os.close(fd)
        raise
    return result


def _do_plainly(job: Job, packet: Packet, send: Send, runtime: Runtime) -> JobResult:
    match job:
        case CompileJob():
            with _descriptors(packet, compile_job.fd_count(job)) as fds:
                return compile_job.build(job, fds, Stages(send, COMPILE_STAGES), runtime)
        case ImportJob():
            with _descriptors(packet, native_blob.fd_count(job)) as fds:
                return native_blob.run_import(job, fds, Stages(send, IMPORT_STAGES), runtime)
        case ExportJob():
            with _descriptors(packet, native_blob.fd_count(job)) as fds:
                return native_blob.run_export(job, fds, Stages(send, EXPORT_STAGES))
        case QueryJob():
            with _descriptors(packet, 1 + len(job.weights)) as fds:
                return query.run(job, fds, Stages(send, QUERY_STAGES), runtime)
        case OptionsJob():
            packet.take_fds(0)
            return JobResult(_options(job, runtime))


def _options(job: OptionsJob, runtime: Runtime) -> messages.CompilerOptionsAnswer:
    major, minor = options.COMPILER_VERSION
    return messages.CompilerOptionsAnswer(
        major=major,
        minor=minor,
        opset=options.NEWEST_OPSET,
        options=tuple(options.OPTIONS),
        supported=options.is_supported(job.option, job.value, job.platform, lambda: runtime.capabilities),
    )


@contextmanager
def _descriptors(packet: Packet, count: int) -> Iterator[list[int]]:
    """The job's descriptors, closed after the block."""
    fds = packet.take_fds(count)
    try:
        yield fds
    finally:
        close_untrusted(fds)
