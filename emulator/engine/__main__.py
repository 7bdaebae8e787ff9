"""The engine's program: `python -m softnpu.emulator.engine CHANNEL-FD PARENT-PID`."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys

from softnpu.emulator.common import failpoints, lean_openvino, linux
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.links import engine as link


def main(arguments: list[str]) -> int:
    """Serve one device until the supervisor closes the channel."""
    linux.die_with_parent(int(arguments[1]))
    # Ctrl-C in a terminal reaches the whole process group: the supervisor decides when we end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    if failpoints.active is not None:
        failpoints.hit("engine.connect")
    lean_openvino.leave_out_converter()
    from softnpu.emulator.engine.engine import Engine  # takes long: the supervisor is being imported as well

    packet = channel.receive()
    if packet is None:
        return 0
    with packet:
        setup = link.command_decoder.decode(packet.body)
        if not isinstance(setup, link.Setup):
            raise RuntimeError(f"the supervisor sent {type(setup).__name__} before Setup")
        states_fd, page_fd, staging_fd = packet.take_fds(3)
    engine = Engine(channel, setup, states_fd, page_fd, staging_fd)
    os.close(states_fd)
    os.close(page_fd)
    engine.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
