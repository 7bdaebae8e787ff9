"""`python -m softnpu.emulator.sandbox.probe`: enter it, try what is refused then, print what worked.

Prints JSON: `missing`, what this machine cannot do, and `possible`, what could be done all the same.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from softnpu.emulator.sandbox import sandbox
from softnpu.emulator.sandbox.sandbox import Policy

_PTRACE_ATTACH = 16
_FIOSETOWN = 0x8901
_MEMORY = 64 << 20
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Print what a process that is sandboxed can do."""
    folder = tempfile.mkdtemp(prefix="softnpu-probe-")
    secret = Path(folder, "secret")
    secret.write_text("secret")
    ready, done = os.pipe()
    pair = socket.socketpair()
    other = os.fork()
    if not other:
        signal.pause()
    child = os.fork()
    if not child:
        missing = sandbox.enter(Policy(memory=_MEMORY))
        possible = [
            name
            for name, attempt in _attempts(Path(folder), secret, other, pair[0]).items()
            if _works(attempt)
        ]
        os.write(done, json.dumps({"missing": missing, "possible": possible}).encode())
        os._exit(0)
    os.close(done)
    try:
        os.waitpid(child, 0)
        print(os.read(ready, 65536).decode())
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
        for path in Path(folder).iterdir():
            path.unlink()
        Path(folder).rmdir()
    return 0


def _attempts(
    folder: Path, secret: Path, other: int, channel: socket.socket
) -> dict[str, Callable[[], object]]:
    return {
        "write a file": lambda: Path(folder, "new").write_text("x"),
        "read a file of its user": secret.read_text,
        "remove a file": secret.unlink,
        "connect": lambda: socket.socket().connect_ex(("127.0.0.1", 9)),
        "start a program": lambda: os.execv("/bin/true", ["true"]),
        "start a process": _fork,
        "trace a process": lambda: _done(_libc.ptrace(_PTRACE_ATTACH, other, None, None)),
        "read the memory of a process": lambda: os.close(os.open(f"/proc/{other}/mem", os.O_RDONLY)),
        "signal a process": lambda: os.kill(other, signal.SIGCONT),
        "choose the cores of a process": lambda: os.sched_setaffinity(other, os.sched_getaffinity(0)),
        "take more memory than it may": lambda: mmap.mmap(-1, 2 * _MEMORY, mmap.MAP_PRIVATE),
        "have a descriptor signal a process": lambda: fcntl.ioctl(
            channel, _FIOSETOWN, struct.pack("=i", other)
        ),
    }


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _fork() -> None:
    if not os.fork():
        os._exit(0)


def _done(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")


if __name__ == "__main__":
    sys.exit(main())
