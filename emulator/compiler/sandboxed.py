"""Sandboxed processes, in which a worker handles models: each has OpenVINO, memory and one job's descriptors.

A model may compromise its process, which therefore sandboxes itself before it reads the job, and ends with
it. OpenVINO is loaded in the fork server that forks them, after a while without jobs if memory suffices, else
with the first job that needs it.
"""

from __future__ import annotations

import errno
import gc
import importlib
import logging
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from softnpu.emulator import compiler
from softnpu.emulator.common import failpoints
from softnpu.emulator.common.untrusted_fds import close_untrusted
from softnpu.emulator.compiler import compile_job, ir_file, native_blob, options, query
from softnpu.emulator.compiler.fork_server import LOAD_S, ForkServer, Program
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
from softnpu.emulator.kernels import trust
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
from softnpu.emulator.openvino import lean_openvino
from softnpu.emulator.sandbox import sandbox

log = logging.getLogger(__name__)

_SPARE_S = 1.0  # the client that caused a start has priority
_ENOUGH_MEMORY = 4 << 30  # a worker with OpenVINO takes little in comparison
_SWITCH_S = 0.0005  # a thread that writes and digests has little to do in Python
_STEPS: dict[type[messages.Message], str] = {
    CompileJob: "compiler.compile",
    ImportJob: "compiler.import",
    ExportJob: "compiler.export",
}
"""Kinds of jobs with a fail-point."""
_WITH_OPENVINO = (CompileJob, ImportJob, QueryJob, OptionsJob)
"""Kinds of jobs that OpenVINO is loaded for."""


class Sandboxed:
    """The processes, seen from the worker, which ends as they do. Each does one job."""

    def __init__(self, outside: Channel) -> None:
        """Fork them, without the worker's channel `outside`; this process must have no threads yet."""
        self._fork_server = ForkServer(Program(_loads_early, _load, _work), outside)

    @property
    def pid(self) -> int:
        """The process that forks them, and loads what they need."""
        return self._fork_server.pid

    def fileno(self) -> int:
        """Return the descriptor that is readable between two jobs when that process has ended."""
        return self._fork_server.fileno()

    def do(self, job: Job, fds: Sequence[int], send: Send, begun: Callable[[int], None]) -> JobResult:
        """Run a job in one of them; `begun` receives its pid.

        Raises `Refused` as it did, or because it violated the protocol.
        """
        try:
            pid, channel = self._fork_server.begin(loaded=isinstance(job, _WITH_OPENVINO))
        except ConnectionError:
            if self._fork_server.own_status() != -signal.SIGXCPU:
                self.end_likewise()
            raise refuse(
                ZeResult.ERROR_OUT_OF_HOST_MEMORY,
                "compiler worker",
                found=f"OpenVINO was not loaded within {LOAD_S} s of CPU time",
                expected="memory enough for it",
                hint="free memory, or raise the daemon's limit of it (ulimit -v)",
            ) from None
        try:
            begun(pid)
            with suppress(ConnectionError):  # the receipt tells
                channel.send(0, messages.encode(job), fds)
            return self._outcome(channel, job, send)
        finally:
            channel.close()
            self._fork_server.end()

    def _outcome(self, channel: Channel, job: Job, send: Send) -> JobResult:
        while True:
            try:
                outcome, made = self._receive(channel, job)
            except (Refused, bounds.BadMessageError) as error:
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
            send(outcome.stage, min(outcome.done, 1.0))

    def _receive(self, channel: Channel, job: Job) -> tuple[Outcome, tuple[int, ...]]:
        try:
            packet = channel.receive()
        except ConnectionError:  # it has left the job unread
            packet = None
        if packet is None:
            try:
                code = self._fork_server.status()
            except ConnectionError:
                self.end_likewise()
            if code == LACK:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            _end_as(code)
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
        """End this process in the way in which the fork server has ended; if it has not, it is killed."""
        _end_as(self._fork_server.own_status())

    def close(self) -> None:
        """End all, and wait for that."""
        self._fork_server.close()


def _end_as(code: int) -> NoReturn:
    """End this process with an exit code, or by a signal."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


_runtime = Runtime()


def _loads_early(requests: socket.socket) -> bool:
    """Whether no job has come for a while, and there is memory enough to be ready for one."""
    poller = select.poll()
    poller.register(requests, select.POLLIN)
    return not poller.poll(1000 * _SPARE_S) and _memory_is_enough()


def _load() -> None:
    """Load OpenVINO. It starts no thread: what is forked would not have it."""
    lean_openvino.load_reader(_runtime.load())
    importlib.import_module(f"{compiler.__name__}.pipeline")
    gc.freeze()  # what is forked does not look through all that


def _work(channel: Channel) -> None:
    """Enter the sandbox, then run one job."""
    gc.disable()  # it ends with its job
    sys.setswitchinterval(_SWITCH_S)
    _enter_sandbox()

    def run(job: Job, packet: Packet, send: Send) -> JobResult:
        try:
            return _do(job, packet, send, _runtime)
        except Exception:
            if lack_of_descriptors() is not None:
                os._exit(LACK)
            raise

    answer_next(channel, run)


def _memory_is_enough() -> bool:
    import psutil

    return int(psutil.virtual_memory().available) >= _ENOUGH_MEMORY


def _enter_sandbox() -> None:
    # the list of trusted kernels, too: no secret, and the job that may need it is not known yet
    readable = (str(ir_file.prepared()[1].parent), str(trust.folder()))
    missing = sandbox.enter(sandbox.Policy(readable, opens_files=True, dumpable=False))
    if missing:
        log.warning("compiler: it is not sandboxed by %s", ", ".join(missing))


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
            return JobResult(options.answer(job, lambda: runtime.capabilities))


@contextmanager
def _descriptors(packet: Packet, count: int) -> Iterator[list[int]]:
    """The job's descriptors, closed after the block."""
    fds = packet.take_fds(count)
    try:
        yield fds
    finally:
        close_untrusted(fds)
