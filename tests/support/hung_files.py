"""A FUSE file system with one file, which stops answering on command, as a network may.

Also a program that serves it: MOUNTPOINT SOURCE. Only root can mount it.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import subprocess
import sys
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from types import TracebackType

_NAME = "f"
_ROOT, _FILE = 1, 2
_MNT_DETACH = 2
_NO_SUCH_FILE, _NO_SUCH_CALL = 2, 38
_libc = ctypes.CDLL(None, use_errno=True)


class _Op(IntEnum):
    """Kernel requests, numbered as in linux/fuse.h."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    OPEN = 14
    READ = 15
    RELEASE = 18
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    RELEASEDIR = 29
    BATCH_FORGET = 42


class HungFile:
    """A file with this content; `hang` stops its server, leaving the block kills it.

    All waits for the file end with the server.
    """

    def __init__(self, folder: Path, content: bytes) -> None:
        self._folder = folder / "mounted"
        self._folder.mkdir()
        source = folder / "content"
        source.write_bytes(content)
        self._server = subprocess.Popen(
            [sys.executable, __file__, str(self._folder), str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"mounted\n"
        self._path = self._folder / _NAME
        self._fds: list[int] = []
        self.size = len(content)

    def open(self, flags: int = os.O_RDONLY) -> int:
        """Open a descriptor of the file, closed at the end."""
        self._fds.append(os.open(self._path, flags))
        return self._fds[-1]

    def __enter__(self) -> HungFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.kill()
        with self._server:
            pass
        for fd in self._fds:
            with suppress(OSError):  # the server is gone
                os.close(fd)
        _libc.umount2(os.fsencode(self._folder), _MNT_DETACH)

    def hang(self, reads_alone: bool = False) -> None:
        """From now on accept every request but answer none, or answer all except reads."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        for fd in self._fds:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self._server.stdin.write(b"r" if reads_alone else b"a")
        self._server.stdin.flush()
        assert self._server.stdout.readline() == b"hangs\n"


def _attributes(inode: int, size: int) -> bytes:
    length, mode, links = (0, 0o40755, 2) if inode == _ROOT else (size, 0o100644, 1)
    seconds, rest = (1, 1, 1), (0, 0, 0, 4096, 0)
    return struct.pack("<6Q10I", inode, length, length // 512, *seconds, 0, 0, 0, mode, links, *rest)


def _answer(operation: int, inode: int, body: bytes, content: bytes) -> bytes | int:
    """Return the answer to a request, or an error number."""
    match operation:
        case _Op.INIT:
            return struct.pack("<4I2H2I", 7, 31, 65536, 0, 0, 0, 131072, 1).ljust(64, b"\0")
        case _Op.LOOKUP if body.rstrip(b"\0") == _NAME.encode():
            return struct.pack("<4Q2I", _FILE, 0, 0, 0, 0, 0) + _attributes(_FILE, len(content))
        case _Op.LOOKUP:
            return _NO_SUCH_FILE
        case _Op.GETATTR:
            return struct.pack("<Q2I", 0, 0, 0) + _attributes(inode, len(content))
        case _Op.OPEN | _Op.OPENDIR:
            return struct.pack("<Q2I", 1, 0, 0)
        case _Op.READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return content[offset : offset + size]
        case _Op.FLUSH | _Op.RELEASE | _Op.RELEASEDIR:
            return b""
    return _NO_SUCH_CALL


def _serve(device: int, content: bytes) -> None:
    hangs: set[_Op] = set()
    poller = select.poll()
    poller.register(device, select.POLLIN)
    poller.register(0, select.POLLIN)
    while True:
        ready = dict(poller.poll())
        if 0 in ready:
            poller.unregister(0)
            hangs = {_Op.READ} if os.read(0, 1) == b"r" else set(_Op)
            print("hangs", flush=True)
        if device not in ready:
            continue
        request = os.read(device, 1 << 18)
        _, operation, unique, inode = struct.unpack_from("<IIQQ", request)
        if operation in hangs or operation in (_Op.FORGET, _Op.BATCH_FORGET):
            continue
        answer = _answer(operation, inode, request[40:], content)
        data, error = (b"", -answer) if isinstance(answer, int) else (answer, 0)
        os.write(device, struct.pack("<IiQ", 16 + len(data), error, unique) + data)


def _main(mountpoint: str, source: str) -> None:
    content = Path(source).read_bytes()
    device = os.open("/dev/fuse", os.O_RDWR)
    choices = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if _libc.mount(b"softnpu-test", os.fsencode(mountpoint), b"fuse", 6, choices):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    _serve(device, content)


if __name__ == "__main__":
    _main(*sys.argv[1:])
