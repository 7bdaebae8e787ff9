"""The peer process of a pair. It runs this module as a program, and sleeps between rounds."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys

from softnpu.emulator.common import linux
from softnpu.tools.bench import pairs
from softnpu.tools.bench.rounds import median_time
from softnpu.tools.shared.failures import ToolError

_COUNT = struct.Struct("=Q")
_START_S = 30.0
_END_S = 10.0


class EchoProcess:
    """Another Python process, pinned to `core`, that answers over a pair of this kind (see `pairs.make`)."""

    def __init__(self, kind: str, core: int) -> None:
        self._kind = kind
        self._near = pairs.make(kind)
        try:
            self._control, self._process = self._start(core)
        finally:
            for fd in self._near.fds:
                os.close(fd)
        try:
            self._expect_ready()
        except BaseException:
            self.close()
            raise
        finally:
            self._near.connected()

    def round(self, count: int) -> float:
        """Return median seconds of `count` round trips."""
        ask = self._near.pair.ask
        self._control.send(_COUNT.pack(count + 1))
        ask()  # wakes the other process: not counted
        return median_time(ask, count)

    def close(self) -> None:
        """End the other process."""
        self._control.close()  # then it ends by itself
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._near.pair.close()
        self._near.ended()

    def _start(self, core: int) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            arguments = [self._kind, str(core), str(far.fileno()), self._near.address, str(os.getpid())]
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "softnpu.tools.bench.echo", *arguments],
                pass_fds=[far.fileno(), *self._near.fds],
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the caller, which ends this process
            )
        return near, process

    def _expect_ready(self) -> None:
        if not select.select([self._control], [], [], _START_S)[0] or self._control.recv(1) != b"r":
            raise ToolError(
                f"{self._kind} peer", found="it did not come up", expected=f"an answer within {_START_S:g} s"
            )

    def __enter__(self) -> EchoProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main(arguments: list[str]) -> int:
    """`KIND CORE CONTROL-FD ADDRESS PARENT-PID`: answer until the control socket closes."""
    kind, core, control_fd, address, parent = arguments
    linux.die_with_parent(int(parent))
    os.sched_setaffinity(0, {int(core)})
    pair = pairs.open_far(kind, address)
    with socket.socket(fileno=int(control_fd)) as control:
        control.send(b"r")
        answer = pair.answer
        while data := control.recv(_COUNT.size):
            for _ in range(_COUNT.unpack(data)[0]):
                answer()
    pair.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
