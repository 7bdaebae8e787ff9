"""`ze_device_handle_t`: one emulated NPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from softnpu.driver.context import Context
from softnpu.emulator.interface.messages import DeviceInfo, EngineStatus

if TYPE_CHECKING:
    from softnpu.driver.driver import Driver


class Device:
    """A device of the daemon. `info` holds its properties: platform, tiles, clocks, memory, uuid."""

    def __init__(self, driver: Driver, info: DeviceInfo) -> None:
        self.driver = driver
        self.connection = driver.connection
        self.info = info

    def create_context(self) -> Context:
        """`zeContextCreate` on this device."""
        return Context(self)

    def get_status(self) -> EngineStatus:
        """`zeDeviceGetStatus`, with the counters of the engine. DEVICE_LOST when the daemon is gone."""
        return self.driver.status("zeDeviceGetStatus").engines[self.info.index]

    def __repr__(self) -> str:
        return f"<Device {self.info.index}: {self.info.name}, platform {self.info.platform}>"
