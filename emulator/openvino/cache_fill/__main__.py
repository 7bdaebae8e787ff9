"""Store one compiled image in the engine cache: a program started by the supervisor with one `ImageLoad`.

Entries serve all sessions, so nothing that a single session can change may enter them. Blob and weights are
sealed, or files writable only by the daemon's user and root, who could write the cache as well. All constants
are compared with the digests in the blob after OpenVINO has read them. The imported image must compute the
same bits as the compiled one.

A malicious model may take over the process that compiles it. Compilation therefore runs in a sandboxed
process of its own, which writes into a memory file; this one handles only the bytes, and stores them under
the key of the content it was given. Such a model can corrupt nothing but its own entry.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from softnpu.emulator.common import linux, log_lines
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.links import engine as link
from softnpu.emulator.openvino import lean_openvino
from softnpu.emulator.sandbox import sandbox

log = logging.getLogger(__name__)

_LEAST_PRIORITY = 19
_REASON = 300


class _Compiler:
    """The compiling process, forked before this one has threads."""

    def __init__(self, message: link.ImageLoad, fds: Sequence[int]) -> None:
        self._result = linux.memfd("entry")
        begin, self._begin = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._begin)
            linux.die_with_parent(parent)
            sandbox.enter(sandbox.Policy())
            os._exit(_compile_into(self._result, begin, message, fds))
        os.close(begin)

    def compiled(self) -> bytes:
        """The entry. Raises `NotKeptError`."""
        from softnpu.emulator.openvino.cache.cpu_cache import LIMIT
        from softnpu.emulator.openvino.cache_fill.entry import NotKeptError

        with suppress(BrokenPipeError):  # one that has ended: its status says how
            os.write(self._begin, b"x")
        _, status = os.waitpid(self._pid, 0)
        size = os.fstat(self._result).st_size
        if size > LIMIT:  # a sparse file costs its writer nothing, but its reader all the memory
            raise NotKeptError(f"{size} bytes are more than the cache takes")
        content = os.pread(self._result, size, 0)
        if status == 0:
            return content
        if os.WIFEXITED(status) and content:
            raise NotKeptError(repr(content[:_REASON].decode(errors="replace")))
        raise NotKeptError(f"the process that compiled it ended with {os.waitstatus_to_exitcode(status)}")


def _compile_into(result: int, begin: int, message: link.ImageLoad, fds: Sequence[int]) -> int:
    """Run in the forked process; return its exit code. On failure `result` holds the reason."""
    lean_openvino.leave_out_unused()
    from softnpu.emulator.openvino.cache_fill import entry

    if not os.read(begin, 1):
        return 0  # not needed
    code = 0
    try:
        content = memoryview(entry.compile_entry(message, fds))
    except (entry.NotKeptError, Refused, RuntimeError) as error:
        content, code = memoryview(str(error).encode()), 1
    while content:
        content = content[os.write(result, content) :]
    return code


def main(arguments: list[str]) -> int:
    """Fill one entry for the supervisor, which is at the other end of the channel."""
    linux.unblock_signals()
    linux.die_with_parent(int(arguments[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_LEAST_PRIORITY)
    log_lines.begin("info")
    packet = Channel(socket.socket(fileno=int(arguments[0]))).receive()
    if packet is None:
        return 0
    with packet:
        message = link.command_decoder.decode(packet.body)
        if not isinstance(message, link.ImageLoad):
            raise RuntimeError(f"the supervisor sent {type(message).__name__}; expected ImageLoad")
        fds = packet.take_fds(packet.fd_count)
    compiler = _Compiler(message, fds)
    lean_openvino.leave_out_unused()
    from softnpu.emulator.openvino.cache.cpu_cache import CpuCache
    from softnpu.emulator.openvino.cache_fill import entry

    cache = CpuCache.open()
    if cache is None:
        return 0
    try:
        entry.fill(cache, message, fds, compiler.compiled)
    except (entry.NotKeptError, Refused, RuntimeError) as error:
        log.info("engine cache: image %d is not stored: %s", message.image, error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
