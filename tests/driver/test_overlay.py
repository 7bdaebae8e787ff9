"""Files of an overlay, as containers have them: the device reads those that are mapped, and no others.

The program has a mount namespace of its own, and its daemon with it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from softnpu.driver.native_library import ENV_NATIVE_DIR
from softnpu.emulator.interface.environment import ENV_SOCKET
from tests.native.building import build

# the layers lie on two file systems: then the overlay has a device of its own for the lower one
_MOUNTS = """
mkdir lower other view && for name in read kept lost; do echo "$3" > lower/$name; done &&
mount -t tmpfs tmpfs other && mkdir other/upper other/work other/lower &&
mount -t overlay -o userxattr,lowerdir=lower,upperdir=other/upper,workdir=other/work overlay view &&
exec "$1" -P -c "$2"
"""
_PROGRAM = """
import ctypes, mmap, os
from pathlib import Path
from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import FOR_READING, HostMemDesc
from tests.conformance.commands import copy
from tests.conformance.drivers import choose
from tests.conformance.rig import Rig
from tests.support.daemon import Daemon
from softnpu.emulator.supervisor.settings import DaemonSettings

SIZE = 12
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
files = {name: os.open(f"view/{name}", os.O_RDONLY) for name in ("read", "kept", "lost")}
page, reading = mmap.PAGESIZE, mmap.PROT_READ
mapped = {name: libc.mmap(None, page, reading, mmap.MAP_SHARED, files[name], 0) for name in files}
before = ctypes.string_at(mapped["read"], SIZE)
for name in ("kept", "lost"):  # now of the upper layer
    with Path("view", name).open("r+b") as file:
        file.write(before[:4] + b"other")
    assert ctypes.string_at(mapped[name], SIZE) == before
os.close(files["read"])
os.close(files["lost"])

daemon = Daemon(DaemonSettings(socket=os.environ["SOFTNPU_SOCKET"]))
try:
    for name in ("python", "native"):
        rig = Rig(choose(name)(daemon.socket))
        for file, expected in (("read", before), ("kept", before), ("lost", None)):
            desc = HostMemDesc(flags=FOR_READING, system_memory=(mapped[file], SIZE))
            made, target = rig.api.ze_mem_alloc_host(rig.context, desc, SIZE), rig.host(SIZE)
            if expected is None:
                assert made.result == ZeResult.ERROR_UNSUPPORTED_FEATURE, (name, file)
                continue
            rig.execute(copy(target, made.get(), SIZE))
            assert rig.api.read(target, SIZE) == expected, (name, file)
            rig.api.ze_mem_free(rig.context, made.get())
        rig.api.close()
finally:
    daemon.close()
print("right")
"""


def test_a_file_of_an_overlay_is_found_and_one_that_has_been_replaced_is_not(private_dir: Path) -> None:
    root = Path(__file__).parents[2]
    namespace = ("unshare", "--user", "--map-root-user", "--mount")
    done = subprocess.run(
        [*namespace, "sh", "-c", _MOUNTS, "-", sys.executable, _PROGRAM, "same content"],
        cwd=private_dir,
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": str(root),
            "TMPDIR": str(private_dir),
            ENV_NATIVE_DIR: str(build().driver.parent),
            ENV_SOCKET: str(private_dir / "npu.sock"),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stderr, done.stdout) == ("", "right\n")
