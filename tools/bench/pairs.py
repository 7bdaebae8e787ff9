"""The peers of `bench submit`: ways for one Python process to call another and receive an answer.

A pair has two ends. The caller's `ask` is one round trip; the other process repeats `answer`.
"""

from __future__ import annotations

import os
import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import posix_ipc

from softnpu.emulator.common import linux

_ANSWER_S = 10.0


class Pair(ABC):
    """One end."""

    @abstractmethod
    def ask(self) -> None:
        """Call, and return on the answer."""

    @abstractmethod
    def answer(self) -> None:
        """Wait for one call and answer it."""

    @abstractmethod
    def close(self) -> None:
        """Close this end."""


class SemaphorePair(Pair):
    """Two POSIX semaphores: the peer of a submission."""

    def __init__(self, call: posix_ipc.Semaphore, reply: posix_ipc.Semaphore) -> None:
        self._call = call
        self._reply = reply

    def ask(self) -> None:
        self._call.release()
        self._reply.acquire(_ANSWER_S)

    def answer(self) -> None:
        self._call.acquire()
        self._reply.release()

    def close(self) -> None:
        self._call.close()
        self._reply.close()


class SocketPair(Pair):
    """A connected AF_UNIX SEQPACKET socket, one byte each way."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def ask(self) -> None:
        self._sock.send(b"x")
        self._sock.recv(1)

    def answer(self) -> None:
        self._sock.recv(1)
        self._sock.send(b"x")

    def close(self) -> None:
        self._sock.close()


class SpinningWord(Pair):
    """Two words of shared memory, in separate cache lines, that both sides poll without a pause."""

    SIZE = 4096
    _CALL = 0
    _REPLY = 16

    def __init__(self, fd: int) -> None:
        self._longs = memoryview(linux.map_shared(fd, self.SIZE)).cast("Q")
        self._number = 0
        os.close(fd)

    def ask(self) -> None:
        longs = self._longs
        number = self._number = self._number + 1
        longs[self._CALL] = number
        while longs[self._REPLY] != number:
            pass

    def answer(self) -> None:
        longs = self._longs
        number = self._number = self._number + 1
        while longs[self._CALL] != number:
            pass
        longs[self._REPLY] = number

    def close(self) -> None:
        self._longs.release()


class IceoryxPair(Pair):
    """Two event services of iceoryx2, with their files in `folder`."""

    def __init__(self, folder: str, caller: bool) -> None:
        import iceoryx2 as iox

        config: Any = iox.config.default()
        config.global_cfg.root_path = iox.Path.new(folder)
        config.global_cfg.prefix = iox.FileName.new(_iceoryx_prefix(folder))
        self._node = iox.NodeBuilder.new().config(config).create(iox.ServiceType.Ipc)
        call, reply = self._service(iox, "call"), self._service(iox, "reply")
        self._notifier = (call if caller else reply).notifier_builder().create()
        self._listener = (reply if caller else call).listener_builder().create()

    def _service(self, iox: Any, name: str) -> Any:
        return self._node.service_builder(iox.ServiceName.new(name)).event().open_or_create()

    def ask(self) -> None:
        self._notifier.notify()
        self._listener.blocking_wait()

    def answer(self) -> None:
        self._listener.blocking_wait()
        self._notifier.notify()

    def close(self) -> None:
        self._notifier.delete()
        self._listener.delete()
        del self._node


def _nothing() -> None:
    return


@dataclass
class Near:
    """The caller's end, and how the other process opens its own: by `address`, with `fds` inherited.

    `connected` is called once it has done so, or never will; `ended` after both ends are closed.
    """

    pair: Pair
    address: str
    fds: list[int] = field(default_factory=list)
    connected: Callable[[], None] = _nothing
    ended: Callable[[], None] = _nothing


def make(kind: str) -> Near:
    """Create a pair of this kind: semaphore, socket, word or iceoryx2."""
    return _MAKERS[kind]()


def open_far(kind: str, address: str) -> Pair:
    """Open the other process's end."""
    return _OPENERS[kind](address)


def has_iceoryx() -> bool:
    """Return whether iceoryx2 is available; it is no dependency of ours."""
    try:
        import iceoryx2  # noqa: F401
    except ImportError:
        return False
    return True


def _make_semaphores() -> Near:
    address = f"/softnpu-bench-{os.getpid()}-{os.urandom(4).hex()}"
    names = _semaphore_names(address)
    call, reply = (posix_ipc.Semaphore(name, posix_ipc.O_CREX, mode=0o600) for name in names)

    def unlink() -> None:
        # unlinked once both have opened them, so that they cannot leak
        for name in names:
            posix_ipc.unlink_semaphore(name)

    return Near(SemaphorePair(call, reply), address, connected=unlink)


def _open_semaphores(address: str) -> Pair:
    call, reply = (posix_ipc.Semaphore(name) for name in _semaphore_names(address))
    return SemaphorePair(call, reply)


def _semaphore_names(address: str) -> tuple[str, str]:
    return f"{address}-call", f"{address}-reply"


def _make_sockets() -> Near:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = far.detach()
    return Near(SocketPair(near), str(fd), [fd])


def _open_socket(address: str) -> Pair:
    return SocketPair(socket.socket(fileno=int(address)))


def _make_word() -> Near:
    fd = linux.memfd("bench-word", SpinningWord.SIZE)
    return Near(SpinningWord(os.dup(fd)), str(fd), [fd])


def _open_word(address: str) -> Pair:
    return SpinningWord(int(address))


def _make_iceoryx() -> Near:
    folder = tempfile.TemporaryDirectory(prefix="softnpu-bench-")

    def clean() -> None:
        folder.cleanup()
        # by design it leaves one file per prefix, for the next node with that prefix
        for left in Path("/dev/shm").glob(f"{_iceoryx_prefix(folder.name)}*"):
            left.unlink(missing_ok=True)

    return Near(IceoryxPair(folder.name, caller=True), folder.name, ended=clean)


def _iceoryx_prefix(folder: str) -> str:
    return Path(folder).name.replace("-", "_") + "_"


def _open_iceoryx(address: str) -> Pair:
    return IceoryxPair(address, caller=False)


_MAKERS = {
    "semaphore": _make_semaphores,
    "socket": _make_sockets,
    "word": _make_word,
    "iceoryx2": _make_iceoryx,
}
_OPENERS = {
    "semaphore": _open_semaphores,
    "socket": _open_socket,
    "word": _open_word,
    "iceoryx2": _open_iceoryx,
}
