"""`ze_device_handle_t`: one emulated NPU."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from softnpu.driver.context import Context
from softnpu.driver.extensions import PROFILING_VERSION
from softnpu.driver.properties import (
    ComputeProperties,
    DeviceProperties,
    DevicePropertyFlag,
    DeviceType,
    ExternalMemoryProperties,
    ImageProperties,
    MemoryAccessProperties,
    MemoryProperties,
    P2PProperties,
    PciProperties,
    QueueGroupFlag,
    QueueGroupProperties,
    RequirementsResult,
)
from softnpu.emulator.blob import container
from softnpu.emulator.interface.messages import Clock, DeviceInfo, EngineStatus

if TYPE_CHECKING:
    from softnpu.driver.external_semaphore import ExternalSemaphore
    from softnpu.driver.graph import Graph
    from softnpu.driver.metrics import MetricGroup
    from softnpu.driver.session import Session
    from softnpu.driver.sysman import Sysman

_VENDOR_INTEL = 0x8086
_HARDWARE_CONTEXTS = 64
_MAX_PRIORITY = 2
_FILL_PATTERN = 4
_COMPILER = "softnpu"


class Device:
    """A device of the daemon; lives as long as its driver. `info` comes from the handshake."""

    def __init__(self, driver: Session, info: DeviceInfo) -> None:
        self.driver = driver
        self._connection = driver._connection
        self.info = info
        self._lock = threading.Lock()
        self._groups: tuple[MetricGroup, ...] = ()

    def create_context(self) -> Context:
        """`zeContextCreate` on this device."""
        self.driver._check("zeContextCreate")
        return Context(self)

    def import_external_semaphore(self, name: str) -> ExternalSemaphore:
        """Import a POSIX semaphore of other programs by name (`sem_open`). Not a call of Level Zero.

        Raises `ZeError`: NOT_AVAILABLE for an unknown name, INSUFFICIENT_PERMISSIONS for one that this user
        may not write.
        """
        from softnpu.driver.external_semaphore import ExternalSemaphore

        self.driver._check("Device.import_external_semaphore")
        return ExternalSemaphore(self.driver, self._connection, name)

    # ------------------------------------------------------------ properties

    def get_properties(self) -> DeviceProperties:
        """`zeDeviceGetProperties`."""
        self.driver._check("zeDeviceGetProperties")
        info = self.info
        return DeviceProperties(
            type=DeviceType.VPU,
            vendor_id=_VENDOR_INTEL,
            device_id=info.device_id,
            flags=DevicePropertyFlag.INTEGRATED,
            subdevice_id=info.revision,
            core_clock_rate=info.core_clock_mhz * 1_000_000,
            max_mem_alloc_size=info.memory_total,
            max_hardware_contexts=_HARDWARE_CONTEXTS,
            max_command_queue_priority=_MAX_PRIORITY,
            num_threads_per_eu=1,
            physical_eu_simd_width=info.simd_width,
            num_eus_per_subslice=info.eus_per_subslice,
            num_subslices_per_slice=1,
            num_slices=info.slices,
            timer_resolution=info.timer_ns_per_tick,
            timestamp_valid_bits=64,
            kernel_timestamp_valid_bits=64,
            uuid=info.uuid,
            name=info.name,
        )

    def get_sub_devices(self) -> list[Device]:
        """`zeDeviceGetSubDevices`: an NPU has none."""
        self.driver._check("zeDeviceGetSubDevices")
        return []

    def get_compute_properties(self) -> ComputeProperties:
        """`zeDeviceGetComputeProperties`."""
        self.driver._check("zeDeviceGetComputeProperties")
        return ComputeProperties()

    def get_image_properties(self) -> ImageProperties:
        """`zeDeviceGetImageProperties`."""
        self.driver._check("zeDeviceGetImageProperties")
        return ImageProperties()

    def get_memory_properties(self) -> list[MemoryProperties]:
        """`zeDeviceGetMemoryProperties`: one memory, DDR. Its size is asked of a context."""
        self.driver._check("zeDeviceGetMemoryProperties")
        return [MemoryProperties()]

    def get_external_memory_properties(self) -> ExternalMemoryProperties:
        """`zeDeviceGetExternalMemoryProperties`."""
        self.driver._check("zeDeviceGetExternalMemoryProperties")
        return ExternalMemoryProperties()

    def get_memory_access_properties(self) -> MemoryAccessProperties:
        """`zeDeviceGetMemoryAccessProperties`."""
        self.driver._check("zeDeviceGetMemoryAccessProperties")
        return MemoryAccessProperties()

    def get_p2p_properties(self, peer: Device) -> P2PProperties:
        """`zeDeviceGetP2PProperties`: devices have no peer access."""
        self.driver._check("zeDeviceGetP2PProperties")
        del peer
        return P2PProperties()

    def get_command_queue_group_properties(self) -> list[QueueGroupProperties]:
        """`zeDeviceGetCommandQueueGroupProperties`: one group, for compute and copies."""
        self.driver._check("zeDeviceGetCommandQueueGroupProperties")
        flags = QueueGroupFlag.COMPUTE | QueueGroupFlag.COPY
        return [QueueGroupProperties(flags=flags, max_memory_fill_pattern_size=_FILL_PATTERN, num_queues=1)]

    def pci_get_properties_ext(self) -> PciProperties:
        """`zeDevicePciGetPropertiesExt`: the NPU's address on the real platforms, 0000:00:0b.0.

        Further devices are on further buses.
        """
        self.driver._check("zeDevicePciGetPropertiesExt")
        return PciProperties(domain=0, bus=self.info.index, device=0x0B, function=0)

    def get_profiling_data_properties(self) -> int:
        """`pfnDeviceGetProfilingDataProperties`: the version of the profiling extension."""
        self.driver._check("pfnDeviceGetProfilingDataProperties")
        return PROFILING_VERSION

    def get_metric_groups(self) -> list[MetricGroup]:
        """`zetMetricGroupGet`. UNSUPPORTED_FEATURE unless `ZET_ENABLE_METRICS` enables metrics."""
        from softnpu.driver import metrics  # imported late: few programs use metrics

        self.driver._check("zetMetricGroupGet")
        metrics.check_enabled()
        return list(self._metric_groups())

    def _metric_groups(self) -> tuple[MetricGroup, ...]:
        """Return the groups, always the same objects: they know which context has activated them."""
        from softnpu.driver import metrics

        with self._lock:
            self._groups = self._groups or metrics.groups_of(
                self._connection, self.info.index, self.info.platform
            )
            return self._groups

    # ------------------------------------------------------------ state

    def get_status(self) -> EngineStatus:
        """`zeDeviceGetStatus`, with the counters of the engine. DEVICE_LOST when the daemon is gone."""
        return self.driver.status("zeDeviceGetStatus").engines[self.info.index]

    def get_global_timestamps(self) -> tuple[int, int]:
        """`zeDeviceGetGlobalTimestamps`: host clock in nanoseconds and device clock in ticks, at one moment.

        Timestamp commands use the same device clock: the host's, or the modelled one if `info.clock` says so.
        Raises DEVICE_LOST when the daemon is gone.
        """
        modelled_ns = self.get_status().device_clock_ns
        now = time.monotonic_ns()
        device_ns = now if self.info.clock == Clock.HOST else modelled_ns
        return now, int(device_ns / self.info.timer_ns_per_tick)

    # ------------------------------------------------------------ runtime requirements

    def get_runtime_requirements(self, graph: Graph) -> str:
        """`zeDeviceGetRuntimeRequirements`: what a compiled graph needs of a device."""
        return _requirements(graph.meta.platform)

    def get_runtime_requirements_key(self) -> str:
        """`zeDeviceGetRuntimeRequirementsKey`: what the requirements of this compiler begin with."""
        return _COMPILER

    def validate_runtime_requirements(self, requirements: str) -> RequirementsResult:
        """`zeDeviceValidateRuntimeRequirements`: whether the device runs graphs with these requirements."""
        if requirements == _requirements(self.info.platform):
            return RequirementsResult.MET
        is_ours = requirements.startswith(f"{_COMPILER}=")
        return RequirementsResult.NOT_MET if is_ours else RequirementsResult.NOT_APPLICABLE

    def sysman(self) -> Sysman:
        """Return the sysman view of the device: properties and engine activity."""
        from softnpu.driver.sysman import Sysman

        self.driver._check("zesDeviceGet")
        return Sysman(self.info.name, self.get_properties, lambda: self.get_status().busy_ns)

    def __repr__(self) -> str:
        return f"<Device {self.info.index}: {self.info.name}, platform {self.info.platform}>"


def _requirements(platform: str) -> str:
    # OpenVINO parses it: NAME=NUMBER, or NAME=[...] around a list of those
    return f"{_COMPILER}=[blob={container.MAJOR};npu={platform}]"
