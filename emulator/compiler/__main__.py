"""Entry of the worker: `python -m softnpu.emulator.compiler FD PARENT_PID`.

FD is an inherited descriptor: one end of a SOCK_SEQPACKET pair. PARENT_PID is the process that started
the worker; the kernel kills the worker when the thread that started it ends (prctl PR_SET_PDEATHSIG counts
threads, not processes), so a supervisor starts workers from a thread that lives as long as it does.
The exit code is 0 when the channel was closed and 2 when the arguments are wrong.
"""

from __future__ import annotations

import gc
import signal
import socket
import sys
from collections.abc import Sequence

from softnpu.emulator.common import failpoints, linux, log_lines, private_memory
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.openvino import lean_openvino

_USAGE = "usage: python -m softnpu.emulator.compiler FD PARENT_PID (started by the softnpu daemon)"


def open_channel(fd: int) -> Channel:
    """The channel over the inherited descriptor `fd`; `OSError` if it is not a SOCK_SEQPACKET socket."""
    sock = socket.socket(fileno=fd)
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_SEQPACKET:
        sock.detach()
        raise OSError(f"descriptor {fd} is no AF_UNIX SOCK_SEQPACKET socket")
    sock.set_inheritable(False)
    sock.setblocking(True)
    return Channel(sock)


def main(arguments: Sequence[str]) -> int:
    """Serve jobs until the channel closes; return the exit code."""
    try:
        fd, parent = (int(argument) for argument in arguments)
        channel = open_channel(fd)
    except (ValueError, OSError) as error:
        print(f"softnpu compiler: {error}\n{_USAGE}", file=sys.stderr)
        return 2
    linux.unblock_signals()
    linux.die_with_parent(parent)
    log_lines.begin("warning")
    # An interrupt from the terminal reaches the whole process group; the supervisor decides for us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    # Here, not above: this import takes 0.2 s, and a parent that dies meanwhile must not leave us behind.
    gc.disable()  # imports leave no garbage
    lean_openvino.leave_out_unused()
    from softnpu.emulator.compiler import worker

    if failpoints.active is not None:
        failpoints.hit("compiler.connect")
    private_memory.limit()
    gc.freeze()
    gc.enable()
    worker.serve(channel)
    channel.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
