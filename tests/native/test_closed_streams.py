"""Programs without standard streams: output must not land in the driver's descriptors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.native.conftest import Run, finished
from tests.support.waiting import wait_until

CLOSED = """
import ctypes, os, sys, traceback
said = open(sys.argv[2], "w")
sys.excepthook = lambda *failure: traceback.print_exception(*failure, file=said)
for stream in range(3): os.close(stream)
from pathlib import Path
from tests.conformance.drivers import choose
from tests.conformance.models import COUNT, weighted_sum
from tests.conformance.rig import Rig, ok
from tests.conformance.api.structures import HostMemDesc
from softnpu.driver import Driver
place = Path(os.environ["SOFTNPU_SOCKET"])
starts = {"python": lambda: Driver.open(place), "native": lambda: ctypes.CDLL("libze_loader.so.1").zeInit(0)}
started = starts[sys.argv[1]]()
rig = Rig(choose(sys.argv[1])(place))
graph, memory = rig.graph(weighted_sum()), [rig.host(COUNT * 4) for _ in range(3)]
shared = rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(export=2), 1 << 20).get()
for stream in range(3):
    try: print(os.readlink(f"/proc/self/fd/{stream}"), file=said)
    except FileNotFoundError: pass
    try: os.write(stream, b"noise")
    except OSError: pass
rig.bind(graph, *memory)
commands = rig.command_list()
ok(rig.api.ze_command_list_append_graph_execute(commands, graph))
rig.close(commands)
rig.run(commands)
assert rig.api.read(shared, 1 << 20) == bytes(1 << 20)
print("done", file=said, flush=True)
"""


@pytest.mark.parametrize("driver", ["python", "native"])
def test_driver_and_daemon_leave_standard_stream_numbers_alone(
    run: Run, private_dir: Path, tmp_path: Path, driver: str
) -> None:
    environment = {"SOFTNPU_AUTOSTART": "1", "SOFTNPU_IDLE_S": "0.5"}
    done = run(CLOSED, driver, str(tmp_path / "said"), check=False, environment=environment)
    assert (tmp_path / "said").read_text() == "done\n"
    assert done.returncode == 0
    wait_until(lambda: not (private_dir / "npu.sock").exists(), what="the end of the daemon")


WITHOUT_STREAMS = 'exec "$@" <&- >&- 2>&-'
SHOW = """
import os, sys
found = [os.path.exists(f"/proc/self/fd/{stream}") for stream in range(3)]
open(sys.argv[1], "w").write(str(found))
"""


def test_program_of_a_private_daemon_keeps_its_streams_closed(
    surroundings: dict[str, str], tmp_path: Path
) -> None:
    program = [sys.executable, "-c", SHOW, str(tmp_path / "said")]
    command = [sys.executable, "-P", "-m", "softnpu.tools.cli", "run", "--private", "--", *program]
    shell = ["sh", "-c", WITHOUT_STREAMS, "sh", *command]
    finished(shell, surroundings)
    assert (tmp_path / "said").read_text() == "[False, False, False]"
