"""The devices that this process uses: one session and one context a device, shared by every `Core`."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from softnpu.driver import Context, Driver
from softnpu.plugin.errors import DeviceLostError, NpuError, PropertyError, translated


class Devices:
    """The devices of one daemon, connected at first use and again after the daemon was lost."""

    def __init__(self, socket: Path | None) -> None:
        self._socket = socket
        self._lock = threading.Lock()
        self._driver: Driver | None = None
        self._contexts: dict[int, Context] = {}
        self._pid = os.getpid()

    def names(self) -> list[str]:
        """`NPU`, or `NPU.0`, `NPU.1`, ... with several devices."""
        with self._lock:
            count = len(self._connected().devices)
        return ["NPU"] if count == 1 else [f"NPU.{index}" for index in range(count)]

    def driver(self) -> Driver:
        """The session of this process."""
        with self._lock:
            return self._connected()

    def context(self, device_name: str) -> Context:
        """The context on the device of this name (`NPU` is the first). Raises `NpuError` for others."""
        with self._lock:
            driver = self._connected()
            index = _index_of(device_name, len(driver.devices))
            context = self._contexts.get(index)
            if context is None:
                with translated(f"device {device_name}", NpuError):
                    context = driver.devices[index].create_context()
                self._contexts[index] = context
            return context

    def close(self) -> None:
        """Ends the session: every model and request of it ends too. The next use opens a new one."""
        with self._lock:
            driver, self._driver, self._contexts = self._driver, None, {}
        if driver is not None:
            driver.destroy()

    def _connected(self) -> Driver:
        if self._pid != os.getpid():
            # a forked child must not speak on its parent's connection
            self._pid, self._driver, self._contexts = os.getpid(), None, {}
        if self._driver is not None and self._driver.connection.is_lost():
            self._driver.destroy()
            self._driver, self._contexts = None, {}
        if self._driver is None:
            with translated("NPU", DeviceLostError):
                self._driver = Driver.open(self._socket)
        return self._driver


_shared: dict[Path | None, Devices] = {}
_shared_lock = threading.Lock()


def devices_at(socket: Path | None) -> Devices:
    """The devices of the daemon at `socket` (None: the default one)."""
    with _shared_lock:
        return _shared.setdefault(socket, Devices(socket))


def _index_of(name: str, count: int) -> int:
    kind, dot, number = name.partition(".")
    if kind != "NPU" or (dot and not number.isdecimal()):
        raise PropertyError(f"device {name!r}: not an NPU; expected NPU or NPU.N")
    index = int(number) if dot else 0
    if index >= count:
        raise PropertyError(f"device {name!r}: the daemon has {count}; expected NPU.0 to NPU.{count - 1}")
    return index
