"""The engine's program: `python -m softnpu.emulator.engine CHANNEL-FD PARENT-PID`."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from softnpu.emulator.arithmetic import library
from softnpu.emulator.common import failpoints, linux, log_lines, native_files, time_slices
from softnpu.emulator.interface import environment
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.kernels import trust
from softnpu.emulator.links import engine as link
from softnpu.emulator.openvino import lean_openvino
from softnpu.emulator.sandbox import sandbox

_SLICE_NS = 500_000
"""Of the loop. Beside a program that floods the daemon it waited 1.2 ms for its turn, with longer ones."""
_SWITCH_S = 0.0005
"""How long the loop waits for the interpreter, which the thread that loads images may have: Python's own 5 ms
are fifty small inferences.
"""


def main(arguments: list[str]) -> int:
    """Serve one device until the supervisor closes the channel."""
    linux.unblock_signals()
    linux.die_with_parent(int(arguments[1]))
    # Ctrl-C reaches the whole process group, but the supervisor decides when this process ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log_lines.begin("info")
    sys.setswitchinterval(_SWITCH_S)
    time_slices.ask_for(_SLICE_NS)
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    if failpoints.active is not None:
        failpoints.hit("engine.connect")
    gc.disable()  # imports leave no garbage
    lean_openvino.leave_out_unused()
    lean_openvino.put_off_unused()
    # slow: the supervisor is being imported as well
    from softnpu.emulator.engine.engine import Engine
    from softnpu.emulator.openvino import memory_limit

    packet = channel.receive()
    if packet is None:
        return 0
    with packet:
        setup = link.command_decoder.decode(packet.body)
        if not isinstance(setup, link.Setup):
            raise RuntimeError(f"the supervisor sent {type(setup).__name__} before Setup")
        states_fd, page_fd, staging_fd = packet.take_fds(3)
    _begin_notes(setup.check)  # before the sandbox: it opens a file for writing
    ready = link.Ready(missing_protections=sandbox.enter(_policy(setup)))
    memory_limit.begin(setup.session_memory)
    engine = Engine(channel, setup, (states_fd, page_fd, staging_fd), ready)
    os.close(states_fd)
    os.close(page_fd)
    gc.freeze()
    gc.enable()
    engine.run()
    return 0


def _begin_notes(asked: str) -> None:
    """If programs are checked, let the runner note what it runs."""
    os.environ[environment.ENV_CHECK] = asked  # a session that is checked alone asks for it, not the daemon
    try:
        folder = environment.check_folder()
        if folder:
            from softnpu.emulator.engine.running import checking, runner
            from softnpu.emulator.interface.check_notes import NoteFile

            runner.make = functools.partial(checking.CheckedRunner, NoteFile(Path(folder), "engine"))
    except (Refused, OSError) as error:  # programs go on, and the report tells what no engine has noted
        logging.getLogger(__name__).error("what this engine runs is not checked: %s", error)


def _policy(setup: link.Setup) -> sandbox.Policy:
    """Return what the engine may read: C++ libraries, the f16 extension, the cache, trusted kernels."""
    from softnpu.emulator.openvino.cache.cpu_cache import CpuCache

    # SOFTNPU_NATIVE_DIR may place them elsewhere
    folders = [str(native_files.guard().parent), str(native_files.engine().parent)]
    cache = CpuCache.open() if setup.cpu_cache else None  # creates its directories
    if cache is not None:
        folders.append(str(cache.models.directory))
    with contextlib.suppress(Refused, OSError):  # if it is created later, a later engine reads it
        folder = library.folder()
        folder.mkdir(0o700, parents=True, exist_ok=True)
        folders.append(str(folder))
    folders += trust.readable(setup.kernels)
    return sandbox.Policy(readable=tuple(folders), dumpable=not setup.shared)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
