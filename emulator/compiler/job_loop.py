"""The loop over a channel's jobs, each answered with progress and then one outcome."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final

from softnpu.emulator.compiler.error_info import not_utf8, out_of_memory, system_error
from softnpu.emulator.compiler.runtime import JobResult
from softnpu.emulator.compiler.stages import Send
from softnpu.emulator.interface import message, messages
from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.interface.result import ErrorInfo, Refused
from softnpu.emulator.links.compiler import CompileJob, Job, QueryJob, job_decoder

LACK: Final = 3
"""Exit code of a process short of descriptors."""
_NEEDED_FDS = 32

Run = Callable[[Job, Packet, Send], JobResult]
"""Runs one job. Raises `Refused`, or `OSError` if a file cannot be read."""


def answer_next(channel: Channel, run: Run) -> bool:
    """Do the next job and answer it; False if the other side has closed the channel.

    Any exception but a refusal, a failed system call and a lack of memory is a defect of the worker: it ends
    the process with its traceback, and the supervisor fails the one job.
    """
    try:
        packet = channel.receive()
        if packet is None:
            return False
        with packet:
            _answer(channel, packet, run)
    except ConnectionError:
        return False  # the other side went away in the middle of an answer
    except Refused as error:
        if lack_of_descriptors() is not None:
            os._exit(LACK)  # those of the job are lost
        _fail(channel, 0, error.info)  # a malformed frame has no request id
    return True


def _answer(channel: Channel, packet: Packet, run: Run) -> None:
    outcome = _outcome(channel, packet, run)
    if isinstance(outcome, ErrorInfo):
        lack = lack_of_descriptors()
        _fail(channel, packet.request, outcome if lack is None else system_error("compile job", lack))
        if lack is not None:
            # it would fail every job, the next worker may not; an orderly end would open files and may hang
            os._exit(LACK)
        return
    try:
        channel.send(packet.request, messages.encode(outcome.answer), outcome.fds)
    except ConnectionError:
        raise
    except OSError as error:  # too many descriptors of the user in flight, or no memory for the message
        _fail(channel, packet.request, system_error("compile job", error))
    finally:
        for fd in outcome.fds:
            os.close(fd)
    if outcome.after is not None:
        outcome.after()


def lack_of_descriptors() -> OSError | None:
    """Return the error if this process is short of descriptors, else None."""
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


def _outcome(channel: Channel, packet: Packet, run: Run) -> JobResult | ErrorInfo:
    """Run the job. The exception is gone when this returns, and with it what its frames kept alive."""
    subject = "compile job"
    try:
        job = message.decode(job_decoder, packet.body, subject, "a job of the compiler")
        subject = _subject(job)
        return run(job, packet, partial(_report, channel, packet.request))
    except Refused as error:
        return error.info
    except MemoryError:
        return out_of_memory(subject).info
    except UnicodeDecodeError as error:  # raised wherever OpenVINO first shows a name of the model
        return not_utf8(subject, error)
    except ConnectionError:
        raise
    except OSError as error:
        return system_error(subject, error)


def _subject(job: Job) -> str:
    return f"model '{job.name}'" if isinstance(job, CompileJob | QueryJob) else "blob"


def _report(channel: Channel, request: int, stage: str, done: float) -> None:
    channel.send(request, messages.encode(messages.Progress(stage=stage, done=done)))


def _fail(channel: Channel, request: int, info: ErrorInfo) -> None:
    channel.send(request, messages.encode(messages.Failed(info=info.shortened())))
