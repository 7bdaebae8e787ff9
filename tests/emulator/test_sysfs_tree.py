"""`softnpu daemon --sysfs`: the files read by monitors of the real NPU, and the rights to their directory."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from softnpu.driver import Driver
from softnpu.emulator.platforms import PLATFORMS, describe
from softnpu.emulator.supervisor.observe import pmt
from tests.conftest import StartDaemon
from tests.support.daemon import DaemonRefused
from tests.support.waiting import wait_until
from tests.support.work import barrier, run

_SLOTS = ("0000:00:0b.0", "0000:00:0c.0")


def _number(path: Path) -> int:
    return int(path.read_text())


def test_monitors_find_both_generations_of_names_and_current_figures(
    start_daemon: StartDaemon, private_dir: Path
) -> None:
    tree = private_dir / "sys"
    daemon = start_daemon(devices=("4000", "3720"), sysfs=str(tree))
    for index, slot in enumerate(_SLOTS):
        by_class = tree / "class/accel" / f"accel{index}" / "device"
        by_driver = tree / "bus/pci/drivers/intel_vpu" / slot
        assert by_class.resolve() == by_driver.resolve() == tree / "devices/pci0000:00" / slot
        assert by_class.resolve().is_relative_to(tree), "links lead nowhere else"
        assert (
            f"DRIVER=intel_vpu\nPCI_CLASS=120000\nPCI_ID=8086:{(0x643E, 0x7D1D)[index]:04X}\n"
            in (by_class / "uevent").read_text()
        )
        assert (by_class / "vendor").read_text() == "0x8086\n"
        most = daemon.engine(index).device.core_clock_mhz
        assert _number(by_class / "npu_max_frequency_mhz") == most
        assert _number(by_class / "freq/hw_max_freq") == most
        assert _number(by_class / "npu_busy_time_us") == _number(by_class / "freq/current_freq") == 0
    device = tree / "class/accel/accel0/device"
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        memory = context.alloc_host(1 << 20)
        run(context.create_command_queue(), barrier(context))
        wait_until(lambda: _number(device / "npu_memory_utilization") >= memory.size)
        wait_until(lambda: _number(device / "npu_busy_time_us") == daemon.engine().busy_ns // 1000 > 0)
    wait_until(lambda: _number(device / "npu_memory_utilization") == 0)
    assert [path.name for path in device.iterdir() if path.name.startswith(".")] == []
    daemon.stop()
    assert not tree.exists()


def test_intel_npu_smi_finds_clock_and_tiles_of_every_platform_and_nothing_behind_them() -> None:
    # GUID, work point, unit of the clock, temperatures: tools/intel-npu-smi of intel/linux-npu-driver
    known = {
        "3720": ("0x130670b2", 0x68, 100 / 3, 0x98),
        "4000": ("0x3072005", 0x18, 25, 0x70),
        "5010": ("0x3086000", 0x18, 25, 0x78),
        "5020": ("0x308d000", 0x18, 25, 0x78),
    }
    assert {*known} == {*PLATFORMS}
    for number, (guid, work_point, unit, temperatures) in known.items():
        info = describe(0, number, 1 << 30)
        assert (pmt.identity(info) or {}).get("guid") == guid
        region = pmt.telemetry(info, works=True)
        (word,) = struct.unpack_from("<Q", region, work_point)
        assert (round((word & 0xFF) * unit), word >> 16 & 0xFF) == (info.core_clock_mhz, info.tiles)
        assert len(region) < temperatures + 8


def test_a_tree_that_a_killed_daemon_left_is_taken_over_and_links_in_it_are_not_followed(
    start_daemon: StartDaemon, private_dir: Path
) -> None:
    tree, outside = private_dir / "sys", private_dir / "outside"
    outside.mkdir()
    (outside / "npu_busy_time_us").write_text("mine")
    start_daemon(sysfs=str(tree)).kill()
    assert (tree / "class").exists()
    (tree / "notes").write_text("")
    with pytest.raises(DaemonRefused, match="it has 'notes' in it"):
        start_daemon(sysfs=str(tree))
    (tree / "notes").unlink()
    (tree / "devices" / "pci0000:00").rename(tree / "devices" / "old")
    (tree / "devices" / "pci0000:00").symlink_to(outside)
    daemon = start_daemon(sysfs=str(tree))
    device = tree / "class/accel/accel0/device"
    assert device.resolve() == tree / "devices/pci0000:00" / _SLOTS[0]
    # a link in place of a file is replaced
    (device / "npu_memory_utilization").unlink()
    (device / "npu_memory_utilization").symlink_to(outside / "npu_busy_time_us")
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        memory = context.alloc_host(4096)
        wait_until(lambda: not (device / "npu_memory_utilization").is_symlink())
        assert _number(device / "npu_memory_utilization") >= memory.size
    assert [path.name for path in outside.iterdir()] == ["npu_busy_time_us"]
    assert (outside / "npu_busy_time_us").read_text() == "mine"
    with pytest.raises(DaemonRefused, match="another daemon keeps its files there"):
        start_daemon(socket=str(private_dir / "other.sock"), sysfs=str(tree))
    daemon.stop()
    assert os.listdir(tree) == [], "the second one has not made the directory"


@pytest.mark.parametrize(
    ("prepare", "found"),
    [
        (lambda path: path.symlink_to("/"), "Not a directory|Too many levels"),
        (lambda path: path.write_text(""), "Not a directory"),
        (
            lambda path: path.mkdir() or (path / "devices").mkdir(),
            "'devices' in it, which is not ours",
        ),
        (lambda path: path.mkdir() or path.chmod(0o777), "others may write it"),
    ],
    ids=["link", "file", "not-ours", "public"],
)
def test_a_directory_that_is_not_ours_is_refused_before_anything_is_written(
    start_daemon: StartDaemon, private_dir: Path, prepare: Callable[[Path], object], found: str
) -> None:
    tree = private_dir / "sys"
    prepare(tree)
    before = sorted(private_dir.rglob("*"))
    with pytest.raises(DaemonRefused, match=found):
        start_daemon(sysfs=str(tree))
    assert [path for path in sorted(private_dir.rglob("*")) if not path.name.startswith("npu.sock")] == [
        path for path in before if not path.name.startswith("npu.sock")
    ]
