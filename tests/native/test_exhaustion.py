"""Exhausted resources: the documented result, and everything works again afterwards."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.native.conftest import OPENVINO, Run
from tests.native.test_lifetime import PROLOGUE
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

DESCRIPTORS = (
    PROLOGUE
    + """
import resource
def used(): return api.ze_graph_query_context_memory(context, 1).get().allocated
before = used()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
# memory to export lies in a segment of its own, whose descriptor finds no room
results = {api.ze_mem_alloc_host(context, HostMemDesc(export=2), 4096).result.name for _ in range(3)}
results.add(api.ze_context_create(driver, ContextDesc()).result.name)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(results)
print(used() - before)
print(api.ze_mem_alloc_host(context, HostMemDesc(export=2), 4096).result.name)
"""
)


def test_no_free_descriptor_is_out_of_host_memory(shared_daemon: Daemon, run: Run) -> None:
    lines = run(DESCRIPTORS, environment={"SOFTNPU_SOCKET": str(shared_daemon.socket)}).stdout.splitlines()
    assert lines == ["{'ERROR_OUT_OF_HOST_MEMORY'}", "0", "SUCCESS"]


ADDRESSES = (
    PROLOGUE
    + """
import resource
def used(): return api.ze_graph_query_context_memory(context, 1).get().allocated
api.ze_mem_free(context, api.ze_mem_alloc_host(context, HostMemDesc(), 64).get())
before, limits = used(), resource.getrlimit(resource.RLIMIT_AS)
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (8 << 20), limits[1]))
results = {api.ze_mem_alloc_host(context, HostMemDesc(), 64 << 20).result.name for _ in range(3)}
resource.setrlimit(resource.RLIMIT_AS, limits)
print(results, used() - before)
print(api.ze_mem_alloc_host(context, HostMemDesc(), 64 << 20).result.name)
"""
)


def test_no_space_in_the_address_space_is_out_of_device_memory(shared_daemon: Daemon, run: Run) -> None:
    environment = {"SOFTNPU_SOCKET": str(shared_daemon.socket)}
    assert run(ADDRESSES, environment=environment).stdout.splitlines() == [
        "{'ERROR_OUT_OF_DEVICE_MEMORY'} 0",
        "SUCCESS",
    ]


FULL = """
import subprocess, sys
if "inside" not in sys.argv:
    mount = "mount --make-rprivate / && mount -t tmpfs -o size=64k tmpfs /dev/shm || exit 77; "
    inside = ["unshare", "-m", "sh", "-c", mount + 'exec "$@"', "sh", *sys.orig_argv, "inside"]
    sys.exit(subprocess.run(inside).returncode)
try:
    open("/dev/shm/full", "wb").write(bytes(1 << 20))
except OSError as failure:
    print(failure.strerror, flush=True)
done = subprocess.run([sys.executable, "-P", "-c", sys.argv[1], *sys.argv[2:]])
sys.exit(done.returncode)
"""


def test_full_dev_shm_affects_nobody(run: Run, digits: Path, private_dir: Path) -> None:
    # for the daemon that starts there it is full as well; nothing is ever created in it
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs to mount")
    environment = {"SOFTNPU_AUTOSTART": "1", "SOFTNPU_IDLE_S": "2"}
    infer = OPENVINO + "check(core.compile_model(digits(), 'NPU'), digits(), images())\n"
    done = run(FULL, infer, str(digits), check=False, environment=environment)
    if done.returncode == 77:
        pytest.skip("needs to mount")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "No space left on device\n"
    wait_until(lambda: not (private_dir / "npu.sock").exists(), what="the end of the daemon")
