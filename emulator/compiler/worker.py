"""The worker: takes jobs from the supervisor, maintains the caches, and delegates to sandboxed processes.

It handles bytes and parses no model: that is done by one process per job, without write access. OpenVINO is
loaded for them by the first job that needs it: that takes longer than all else in a compilation answered
from the cache.
"""

from __future__ import annotations

import select
import signal
from contextlib import suppress
from functools import partial

from softnpu.emulator.common.untrusted_fds import close_untrusted
from softnpu.emulator.compiler import caching, checked_blobs, compile_job, native_blob, options
from softnpu.emulator.compiler.job_loop import answer_next
from softnpu.emulator.compiler.runtime import JobResult
from softnpu.emulator.compiler.sandboxed import Sandboxed
from softnpu.emulator.compiler.stages import COMPILE_STAGES, IMPORT_STAGES, Send, Stages
from softnpu.emulator.disk_cache import cache_key
from softnpu.emulator.interface import messages
from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.links.compiler import CompileJob, ImportJob, Job, OptionsJob, Started
from softnpu.emulator.sandbox import sandbox


def serve(channel: Channel) -> None:
    """Answer jobs until the other side closes the channel."""
    sandboxed = Sandboxed(channel)
    with suppress(ConnectionError):  # the first receipt tells
        channel.send(0, messages.encode(Started(pid=sandboxed.pid)))
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # of a lease of `weight_records` that somebody breaks
    cache_key.prepare()
    checked_blobs.code_digest()
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    poller.register(sandboxed, select.POLLIN)
    run = partial(_run, channel, sandboxed)
    while True:
        if sandboxed.fileno() in dict(poller.poll()):
            sandboxed.end_likewise()
        if not answer_next(channel, run):
            break
    sandboxed.close()


def _run(channel: Channel, sandboxed: Sandboxed, job: Job, packet: Packet, send: Send) -> JobResult:
    if job.shared:
        sandbox.hide()

    def begun(pid: int) -> None:
        channel.send(packet.request, messages.encode(Started(pid=pid)))

    do = partial(sandboxed.do, begun=begun)
    match job:
        case CompileJob():
            fds = packet.take_fds(compile_job.fd_count(job))
        case ImportJob():
            fds = packet.take_fds(native_blob.fd_count(job))
        case OptionsJob() if not options.needs_openvino(job):
            packet.take_fds(0)
            return JobResult(options.answer(job, tuple))
        case _:
            fds = packet.take_fds(packet.fd_count)
    try:
        match job:
            case CompileJob():
                return caching.compile_model(job, fds, Stages(send, COMPILE_STAGES), do)
            case ImportJob():
                return caching.import_blob(job, fds, Stages(send, IMPORT_STAGES), do)
            case _:
                return do(job, fds, send)
    finally:
        close_untrusted(fds)
