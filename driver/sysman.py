"""Sysman: what system monitors query of a device."""

from __future__ import annotations

import time
from collections.abc import Callable

from softnpu.driver.properties import DeviceProperties, EngineGroup, EngineStats, SysmanProperties

DRIVER_VERSION = "npu-linux-driver-softnpu-0.1"


class Sysman:
    """`zes_device_handle_t` of one device."""

    def __init__(
        self, model: str, get_core: Callable[[], DeviceProperties], get_busy_ns: Callable[[], int]
    ) -> None:
        self._model = model
        self._get_core = get_core
        self._get_busy_ns = get_busy_ns

    def get_properties(self) -> SysmanProperties:
        """`zesDeviceGetProperties`."""
        return SysmanProperties(
            core=self._get_core(),
            num_subdevices=0,
            serial_number="unknown",
            board_number="unknown",
            brand_name="NPU",
            model_name=self._model,
            vendor_name="INTEL",
            driver_version=DRIVER_VERSION,
        )

    def enum_engine_groups(self) -> list[EngineGroup]:
        """`zesDeviceEnumEngineGroups`: one."""
        return [EngineGroup.COMPUTE_ALL]

    def engine_get_activity(self, group: EngineGroup = EngineGroup.COMPUTE_ALL) -> EngineStats:
        """`zesEngineGetActivity`: busy time since the daemon started. DEVICE_LOST when it is gone."""
        del group
        busy = self._get_busy_ns()
        return EngineStats(active_time=busy // 1000, timestamp=time.monotonic_ns() // 1000)
