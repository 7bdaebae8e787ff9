"""Real processes of other users, which drop their privileges before they contact a daemon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import pytest

from softnpu.emulator import access
from tests.support.client import ClientProcess
from tests.support.daemon import Daemon

GUEST, STRANGER, GROUP = 65533, 65532, 65531
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes of other users")

BECOME = """
# what is imported later may lie where this user cannot read
import numpy.random, socket
from softnpu.driver import faults
import softnpu.driver.graph_creation, softnpu.driver.graph_source, softnpu.driver.launch
from softnpu.emulator.interface import endpoint, messages as msg
from softnpu.emulator.interface.channel import Channel

def become(uid, groups):
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    linux.die_with_parent(int(sys.argv[1]))

def outcome(call):
    try:
        return {"value": call()}
    except ZeError as error:
        return {"error": error.result.name, "text": str(error)}
    except OSError as error:
        return {"error": type(error).__name__, "text": str(error)}

kept = []  # what nobody refers to any more is given back

def infer(context):
    # sources are opened before: this user may not read the files of another
    graph, memory = load(context, source)
    image = np.random.default_rng(1).random((1, 1, 8, 8), dtype=np.float32)
    memory[0].view(np.float32, (1, 1, 8, 8))[:] = image
    commands = recorded(context, lambda c: c.append_graph_execute(graph))
    queue = context.create_command_queue()
    queue.execute_command_lists([commands])
    assert queue.synchronize(60 * 10**9)
    kept.append((graph, memory, commands, queue))
    return memory[1].view(np.float32).tolist()

place = Path(given["socket"])
source = GraphSource.from_ir(Path(given["xml"])) if "xml" in given else None
become(given["uid"], given.get("groups", []))
"""


class AsUser(Protocol):
    """Run code as another user who is allowed to use the daemon."""

    def __call__(self, code: str, daemon: Daemon, uid: int = GUEST, **given: Any) -> ClientProcess: ...


def public_place(folder: Path, users: tuple[int, ...] = (), groups: tuple[int, ...] = ()) -> Path:
    """Return a socket path in a new directory, made here because it also holds a test daemon's log."""
    place = folder / "shared" / "npu.sock"
    access.make_folder(place, users, groups)
    return place
