"""The devices that this process uses: one session, one context for each device, shared by every `Core`."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec

from softnpu.driver import Context, Driver
from softnpu.emulator.interface.messages import DeviceInfo
from softnpu.plugin.errors import DeviceLostError, NpuError, PropertyError, translated


class Selected(msgspec.Struct, frozen=True):
    """A device that a program has named: `id` is its number or its platform, empty for the default one."""

    index: int
    name: str
    id: str
    info: DeviceInfo


class Devices:
    """The devices of one daemon. Connects on first use, and again after the daemon was lost."""

    def __init__(self, socket: Path | None) -> None:
        self._socket = socket
        self._lock = threading.Lock()
        self._driver: Driver | None = None
        self._contexts: dict[int, Context] = {}
        self._pid = os.getpid()

    @property
    def socket(self) -> Path | None:
        """The socket of the daemon; None for the default one."""
        return self._socket

    def names(self) -> list[str]:
        """Return `NPU`, or `NPU.0`, `NPU.1`, ... with several devices."""
        with self._lock:
            return _names(self._connected())

    def driver(self) -> Driver:
        """Return the session of this process."""
        with self._lock:
            return self._connected()

    def select(self, device_name: str, device_id: str = "", default_id: str = "") -> Selected:
        """Return a device by its name; `device_id` selects one for `NPU`, else `default_id`, else the first.

        Raises `PropertyError` for an unknown name or id, and if they contradict each other.
        """
        number = check_name(device_name)
        with self._lock:
            driver = self._connected()
            chosen = device_id or ("" if number else default_id)
            index = _index_of(device_name, chosen, driver)
            info = driver.devices[index].info
            return Selected(index, _names(driver)[index], number or chosen, info)

    def context(self, index: int) -> Context:
        """Return the context of the device with this index. Raises `NpuError`."""
        with self._lock:
            driver = self._connected()
            context = self._contexts.get(index)
            if context is None:
                with translated(f"device {index}", NpuError):
                    context = driver.devices[index].create_context()
                self._contexts[index] = context
            return context

    def has(self, context: Context) -> bool:
        """Return whether a context belongs to the open session."""
        with self._lock:
            return self._contexts.get(context.device.info.index) is context

    def close(self) -> None:
        """End the session with all its models and requests. The next use opens a new one."""
        with self._lock:
            driver, self._driver, self._contexts = self._driver, None, {}
        if driver is not None:
            driver.destroy()

    def _connected(self) -> Driver:
        if self._pid != os.getpid():
            # a forked child must not use its parent's connection
            self._pid, self._driver, self._contexts = os.getpid(), None, {}
        if self._driver is not None and self._driver.lost:
            self._driver.destroy()
            self._driver, self._contexts = None, {}
        if self._driver is None:
            with translated("NPU", DeviceLostError):
                self._driver = Driver.open(self._socket)
        return self._driver


_shared: dict[Path | None, Devices] = {}
_shared_lock = threading.Lock()


def devices_at(socket: Path | None) -> Devices:
    """Return the devices of the daemon at `socket` (None: the default one)."""
    with _shared_lock:
        return _shared.setdefault(socket, Devices(socket))


def devices_of(context: Context) -> Devices | None:
    """Return the devices of a context of the plugin; None when its session has ended."""
    with _shared_lock:
        return next((devices for devices in _shared.values() if devices.has(context)), None)


def check_name(name: str) -> str:
    """Return the part of a device name after `NPU.`, empty for `NPU`. Raises `PropertyError` for others."""
    kind, dot, number = name.partition(".") if isinstance(name, str) else ("", "", "")
    if kind != "NPU" or bool(dot) != bool(number):
        raise PropertyError(f"device {name!r}: not an NPU; expected NPU or NPU.N")
    return number


def _names(driver: Driver) -> list[str]:
    count = len(driver.devices)
    return ["NPU"] if count == 1 else [f"NPU.{index}" for index in range(count)]


def _index_of(name: str, device_id: str, driver: Driver) -> int:
    number = check_name(name)
    if not number:
        return _find(f"property DEVICE_ID: value {device_id!r}", device_id, driver) if device_id else 0
    index = _find(f"device {name!r}", number, driver)
    if device_id and _find(f"property DEVICE_ID: value {device_id!r}", device_id, driver) != index:
        raise PropertyError(f"device {name!r}, property DEVICE_ID: value {device_id!r}; expected {number!r}")
    return index


def _find(subject: str, number: str, driver: Driver) -> int:
    """Return the index of a device, by its number or its platform."""
    devices = driver.devices
    if number.isascii() and number.isdecimal() and int(number) < len(devices):
        return int(number)
    for device in devices:
        if device.info.platform == number:
            return device.info.index
    known = ", ".join(f"{device.info.index} (platform {device.info.platform})" for device in devices)
    raise PropertyError(
        f"{subject}: no such device; expected one of {known}. NPU_PLATFORM compiles for an absent platform"
    )
