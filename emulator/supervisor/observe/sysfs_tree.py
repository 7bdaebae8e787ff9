"""The kernel's sysfs files of an NPU, below a directory of the user's choice, for monitors.

The names are those of `intel_vpu` (drivers/accel/ivpu/ivpu_sysfs.c): the older ones for busy time, memory and
clocks, and the folder `freq` that takes the place of the clocks. Links between folders are as in /sys.

The tree belongs to the daemon that holds the lock on its file `.softnpu`. A tree left by a killed daemon is
taken over. Every file is opened from a descriptor of its folder and never through a link.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from softnpu.emulator.common.file_claim import try_lock
from softnpu.emulator.common.file_ownership import others_write
from softnpu.emulator.interface import daemon_files
from softnpu.emulator.interface.messages import DeviceInfo
from softnpu.emulator.interface.records import StatusWord
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.supervisor.observe import pmt
from softnpu.emulator.supervisor.reactor import Reactor, Timer

log = logging.getLogger(__name__)

PERIOD_S = 1.0
"""Interval between writes of changed files."""
_MARK = ".softnpu"
_HINT = "choose an empty directory, or one that does not exist, with --sysfs"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TOP = ("bus", "class", "devices")
_VENDOR = 0x8086
_ACCELERATOR = 0x12
"""The PCI class; subclass and interface are 0."""
_HEADER = struct.Struct("<2H4x4B32x2H16x")
"""The PCI configuration: vendor, device, revision, interface, subclass, class, subsystem; the rest is 0."""
_RESOURCE = "\n".join([" ".join(["0x0000000000000000"] * 3)] * 13)
"""No memory of its own can be mapped."""


class SysfsDevice(Protocol):
    """A device as seen by the tree."""

    info: DeviceInfo

    @property
    def memory_used(self) -> int: ...
    def counter(self, word: StatusWord) -> int:
        """Return a word of the status page."""
        ...


class _Folder(NamedTuple):
    device: SysfsDevice
    fd: int
    freq: int
    telemetry: int
    """-1: of a platform without known telemetry."""


class SysfsTree:
    """One such tree, from `begin` to `close`. Refuses a directory that has anything else in it."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._made = self._make()
        try:
            self._root = os.open(self._path, _DIRECTORY)
        except OSError as error:
            raise _unusable(self._path, error.strerror or str(error)) from error
        self._mark = -1
        self._folders: list[_Folder] = []
        self._written: dict[tuple[int, str], str | bytes] = {}
        self._busy: dict[int, int] = {}
        self._failed = False
        self._timer: Timer | None = None
        try:
            self._claim()
        except BaseException:
            os.close(self._root)
            raise

    def _make(self) -> bool:
        """Make the directory if it is missing; whether it was."""
        try:
            daemon_files.check_folder(self._path.parent)
        except Refused as error:
            info = error.info
            raise refuse(
                ZeResult(info.result), info.object, found=info.found, expected=info.expected, hint=_HINT
            ) from error
        try:
            os.mkdir(self._path, 0o755)
        except FileExistsError:
            return False
        except OSError as error:
            raise _unusable(self._path, error.strerror or str(error)) from error
        return True

    def _claim(self) -> None:
        info = os.fstat(self._root)
        if info.st_uid != os.geteuid():
            raise _unusable(self._path, f"it belongs to user {info.st_uid}")
        if others_write(self._root, info):
            raise _unusable(self._path, f"others may write it (mode {stat.S_IMODE(info.st_mode):o})")
        entries = set(os.listdir(self._root))
        if entries and (_MARK not in entries or not entries <= {_MARK, *_TOP}):
            other = min(entries - {_MARK, *_TOP}, default=min(entries))
            raise _unusable(self._path, f"it has {other!r} in it, which is not ours")
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._mark = os.open(_MARK, flags, 0o600, dir_fd=self._root)
        except OSError as error:
            raise _unusable(self._path / _MARK, error.strerror or str(error)) from error
        if not try_lock(self._mark, optional=True):
            os.close(self._mark)
            raise _unusable(self._path, "another daemon keeps its files there")
        # by a daemon that was killed
        for name in entries & set(_TOP):
            _remove(self._root, name)

    # ------------------------------------------------------------ the files

    def begin(self, devices: Sequence[SysfsDevice]) -> None:
        """Make the tree, with current files."""
        try:
            for device in devices:
                self._add(device)
        except OSError as error:
            raise _unusable(self._path, error.strerror or str(error)) from error
        self.update()

    def keep_current(self, reactor: Reactor) -> None:
        """Write changed files in intervals, until `close`."""
        self._timer = reactor.every(PERIOD_S, self.update)

    def _add(self, device: SysfsDevice) -> None:
        info = device.info
        # the NPU of the first device is where it is on Intel's processors
        slot = f"0000:00:{0x0B + info.index:02x}.0"
        accel = f"accel{info.index}"
        at = f"devices/pci0000:00/{slot}"
        folder = self._folder(at)
        freq = self._folder(f"{at}/freq")
        self._folders.append(_Folder(device, folder, freq, self._add_telemetry(info, at)))
        accel_folder = self._folder(f"{at}/accel/{accel}")
        self._folder("bus/pci/drivers/intel_vpu", keep=False)
        self._link(f"../../../../{at}", f"bus/pci/drivers/intel_vpu/{slot}")
        self._link(f"../../../{at}", f"bus/pci/devices/{slot}")
        self._link(f"../../{at}/accel/{accel}", f"class/accel/{accel}")
        self._link("../../../../bus/pci/drivers/intel_vpu", f"{at}/driver")
        self._link("../../../../bus/pci", f"{at}/subsystem")
        self._link(f"../../../{slot}", f"{at}/accel/{accel}/device")
        numbers = (_VENDOR, info.device_id, info.revision, 0, 0, _ACCELERATOR, _VENDOR, 0)
        modalias = f"pci:v{_VENDOR:08X}d{info.device_id:08X}sv{_VENDOR:08X}sd00000000bc12sc00i00"
        identity: dict[str, str | bytes] = {
            "vendor": f"{_VENDOR:#06x}",
            "device": f"{info.device_id:#06x}",
            "subsystem_vendor": f"{_VENDOR:#06x}",
            "subsystem_device": "0x0000",
            "class": f"{_ACCELERATOR << 16:#08x}",
            "revision": f"{info.revision:#04x}",
            "irq": "0",
            "resource": _RESOURCE,
            "config": _HEADER.pack(*numbers),
            "modalias": modalias,
            "uevent": f"DRIVER=intel_vpu\nPCI_CLASS=120000\nPCI_ID=8086:{info.device_id:04X}\n"
            f"PCI_SUBSYS_ID=8086:0000\nPCI_SLOT_NAME={slot}\nMODALIAS={modalias}",
            "sched_mode": "OS",
            "npu_max_frequency_mhz": str(info.core_clock_mhz),
        }
        for name, text in identity.items():
            self._write(folder, name, text)
        self._write(accel_folder, "uevent", f"MAJOR=261\nMINOR={info.index}\nDEVNAME=accel/{accel}")
        self._write(accel_folder, "dev", f"261:{info.index}")
        os.close(accel_folder)
        for name in ("hw_max_freq", "hw_efficient_freq", "hw_min_freq"):
            self._write(freq, name, str(info.core_clock_mhz))

    def _add_telemetry(self, info: DeviceInfo, at: str) -> int:
        """Make the folder of the processor's telemetry; its descriptor, or -1."""
        known = pmt.identity(info)
        if known is None:
            return -1
        telem = f"telem{info.index}"
        folder = self._folder(f"{at}/intel_pmt/{telem}")
        self._link(f"../../{at}/intel_pmt/{telem}", f"class/intel_pmt/{telem}")
        for name, text in known.items():
            self._write(folder, name, text)
        return folder

    def update(self) -> None:
        """Write the files whose content has changed."""
        for folder in self._folders:
            device = folder.device
            busy_us = device.counter(StatusWord.BUSY) // 1000
            # as the real one: a clock while it works, 0 at rest
            works = busy_us != self._busy.get(device.info.index, busy_us)
            clock = str(device.info.core_clock_mhz if works else 0)
            self._busy[device.info.index] = busy_us
            self._guarded(folder.fd, "npu_busy_time_us", str(busy_us))
            self._guarded(folder.fd, "npu_memory_utilization", str(device.memory_used))
            self._guarded(folder.fd, "npu_current_frequency_mhz", clock)
            self._guarded(folder.freq, "current_freq", clock)
            if folder.telemetry >= 0:
                self._guarded(folder.telemetry, "telem", pmt.telemetry(device.info, works))

    def _guarded(self, folder: int, name: str, text: str | bytes) -> None:
        """Write a file; a file system that is full or gone is logged once, and tried again."""
        try:
            self._write(folder, name, text)
        except OSError as error:
            if not self._failed:
                log.error("%s: %s is not current: %s", self._path, name, error)
            self._failed = True

    def _write(self, folder: int, name: str, text: str | bytes) -> None:
        """Replace a file atomically; a link of its name is not followed."""
        if self._written.get((folder, name)) == text:
            return
        temporary = f".{name}.new"
        try:
            fd = os.open(temporary, _NEW_FILE, 0o644, dir_fd=folder)
        except FileExistsError:  # its last write has failed
            os.unlink(temporary, dir_fd=folder)
            fd = os.open(temporary, _NEW_FILE, 0o644, dir_fd=folder)
        try:
            os.write(fd, text if isinstance(text, bytes) else f"{text}\n".encode())
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        self._written[folder, name] = text

    def _folder(self, path: str, keep: bool = True) -> int:
        """Make the folders of a path below the tree; the descriptor of the last one."""
        fd = os.dup(self._root)
        for part in path.split("/"):
            with suppress(FileExistsError):  # the device before this one has it as well
                os.mkdir(part, 0o755, dir_fd=fd)
            inner = os.open(part, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        if not keep:
            os.close(fd)
        return fd

    def _link(self, target: str, path: str) -> None:
        parent, _, name = path.rpartition("/")
        folder = self._folder(parent)
        try:
            os.symlink(target, name, dir_fd=folder)
        finally:
            os.close(folder)

    # ------------------------------------------------------------ its end

    def close(self) -> None:
        """Remove the tree, and the directory if it was made for it; harmless when repeated."""
        if self._mark < 0:
            return
        if self._timer is not None:
            self._timer.cancel()
        for folder in self._folders:
            os.close(folder.fd)
            os.close(folder.freq)
            if folder.telemetry >= 0:
                os.close(folder.telemetry)
        self._folders.clear()
        for remove in (*(self._remover(name) for name in _TOP), self._remove_mark, self._remove_root):
            try:
                remove()
            except OSError as error:
                log.warning("%s: not everything was removed: %s", self._path, error)
        os.close(self._mark)
        os.close(self._root)
        self._mark = -1

    def _remover(self, name: str) -> Callable[[], None]:
        return lambda: _remove(self._root, name)

    def _remove_mark(self) -> None:
        os.unlink(_MARK, dir_fd=self._root)

    def _remove_root(self) -> None:
        if self._made:
            os.rmdir(self._path)


def _remove(folder: int, name: str) -> None:
    """Remove a file, a link or a folder with all that is in it, from a descriptor; follows no link."""
    try:
        inner = os.open(name, _DIRECTORY, dir_fd=folder)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        os.unlink(name, dir_fd=folder)
        return
    try:
        for each in os.listdir(inner):
            _remove(inner, each)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)


def _unusable(path: Path, found: str) -> Refused:
    return refuse(
        ZeResult.ERROR_INVALID_ARGUMENT,
        f"directory {path}",
        found=found,
        expected="an empty directory of this user, or a tree that a daemon has left",
        hint=_HINT,
    )
