"""`softnpu run --node`: a program finds the NPU's files in /sys and /dev, and nobody else does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from softnpu.tools.run import node_view
from tests.support.cli import softnpu
from tests.support.daemon import Daemon

# reads as nputop, glances, aitop (class/accel), xtop, lspci (bus/pci/devices), intel-npu-smi (its driver,
# intel_pmt), and a device plugin; docs/observability.md has what was tried
_MONITOR = """
import json, os, stat, struct, sys
from pathlib import Path
from softnpu.driver import Driver
from tests.support.waiting import wait_until
from tests.support.work import barrier, run

device = Path("/sys/class/accel/accel0/device")
by_driver = next(Path("/sys/bus/pci/drivers/intel_vpu").glob("0000:*"))
telemetry = Path("/sys/class/intel_pmt/telem0")
number = lambda name: int((device / name).read_text())
npu_smi = [name for name in os.listdir("/sys/bus/pci/drivers/intel_vpu") if name.startswith("0000:")]
names = ("vendor", "device", "subsystem_vendor", "class")
identities = {
    each.name: [(each / name).read_text().strip() for name in names]
    for each in Path("/sys/bus/pci/devices").iterdir()
}
work_point = lambda: struct.unpack_from("<Q", (telemetry / "telem").read_bytes(), 0x18)[0]
seen = {
    "npu_smi": [npu_smi, os.listdir(by_driver / "accel")],
    "identity": identities[by_driver.name],
    "config": (device / "config").read_bytes()[:12].hex(),
    "views": "softnpu-node-" in Path("/proc/self/mounts").read_text(),
    "same": device.resolve() == by_driver.resolve(),
    "driver": device.joinpath("driver").resolve().name,
    "node": stat.S_ISCHR(os.stat("/dev/accel/accel0").st_mode),
    "guid": (telemetry / "guid").read_text().strip(),
    "end": int((telemetry / "size").read_text()) == (telemetry / "telem").stat().st_size == 0x20,
    "rest": [number("npu_current_frequency_mhz"), work_point()],
    "others": sorted(set(os.listdir("/sys/class")) | set(os.listdir("/dev"))),
}
with Driver.open(os.environ["SOFTNPU_SOCKET"]) as driver:
    context = driver.devices[0].create_context()
    memory = context.alloc_host(1 << 20)
    queue, list_ = context.create_command_queue(), barrier(context)
    before = number("npu_busy_time_us")

    def works():
        run(queue, list_)
        return number("npu_current_frequency_mhz") and work_point()

    wait_until(works)
    seen["works"] = [number("npu_current_frequency_mhz"), work_point()]
    seen["busy"] = number("npu_busy_time_us") > before
    wait_until(lambda: number("npu_memory_utilization") >= memory.size)
print(json.dumps(seen))
sys.exit(7)
"""


def test_monitors_find_live_figures_and_nobody_else_does(
    cli_daemon: Daemon, native_dir: dict[str, str]
) -> None:
    theirs = set(os.listdir("/sys/class")) | set(os.listdir("/dev"))
    root = Path(__file__).parents[2]
    done = softnpu("run", "--node", "--", sys.executable, "-c", _MONITOR, **native_dir, PYTHONPATH=str(root))
    assert done.code == 7, done.err
    seen = json.loads(done.out)
    assert theirs <= {*seen.pop("others")}
    clock = cli_daemon.engine().device.core_clock_mhz
    assert seen == {
        "npu_smi": [["0000:00:0b.0"], ["accel0"]],
        "identity": ["0x8086", "0x643e", "0x8086", "0x120000"],
        "config": "86803e64" + "00" * 4 + f"{cli_daemon.engine().device.revision:02x}" + "000012",
        "views": False,
        "same": True,
        "driver": "intel_vpu",
        "node": True,
        "guid": "0x3072005",
        "end": True,
        "rest": [0, 0],
        "works": [clock, clock // 25 | cli_daemon.engine().device.tiles << 16],
        "busy": True,
    }
    assert set(os.listdir("/sys/class")) | set(os.listdir("/dev")) == theirs
    assert softnpu("run", "--node", "--", "no-such-program", **native_dir).code == 127


@pytest.fixture
def folder(private_dir: Path) -> Path:
    """What `run_with_node` prepares, with a device of which only the name matters."""
    (private_dir / node_view.VIEW).mkdir()
    (private_dir / node_view.TREE / "class/accel/accel0").mkdir(parents=True)
    return private_dir


def _view(folder: Path, code: str, *before: str) -> subprocess.CompletedProcess[str]:
    code = f"from pathlib import Path; from softnpu.tools.run import node_view; {code}"
    command = [*before, sys.executable, "-P", "-c", code, str(folder), "ls", "/sys/class/accel"]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def test_a_user_has_the_view_by_a_namespace_of_its_own(folder: Path) -> None:
    done = _view(
        folder,
        f"import os; node_view.enter(Path({str(folder)!r}), own_users=True);"
        " print(os.geteuid(), os.listdir('/sys/class/accel'), open('/proc/self/uid_map').read().split())",
    )
    user = os.geteuid()
    assert (done.stderr, done.stdout) == ("", f"{user} ['accel0'] {[str(user), str(user), '1']}\n")


def test_mounts_within_mounts_of_the_machine_are_shown_as_well(folder: Path) -> None:
    inner = "mount -t tmpfs tmpfs /dev/shm && mkdir /dev/shm/inner && mount -t tmpfs tmpfs /dev/shm/inner"
    prepare = f'{inner} && touch /dev/shm/inner/file && exec "$@"'
    enter = f"node_view.enter(Path({str(folder)!r}), own_users=True)"
    done = _view(
        folder,
        f"import os; {enter}; print(os.listdir('/dev/shm/inner'))",
        *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", prepare, "-"),
    )
    assert (done.stderr, done.stdout) == ("", "['file']\n")


def test_a_machine_that_forbids_namespaces_is_named_with_the_way_out(folder: Path) -> None:
    forbid = 'echo 0 > /proc/sys/user/max_mnt_namespaces; exec "$@"'
    done = _view(folder, "node_view.main()", "unshare", "--user", "--map-root-user", "sh", "-c", forbid, "-")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "softnpu: option --node: unshare: No space left on device; expected a machine"
    )
    assert "softnpu daemon --sysfs DIR" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_trace_and_a_view_exclude_each_other(native_dir: dict[str, str]) -> None:
    said = softnpu("run", "--node", "--", "true", **native_dir, ZE_INTEL_NPU_LOGPERFETTO="1").misuse
    assert "--node: given with ZE_INTEL_NPU_LOGPERFETTO" in said
