"""The identity of the driver and its devices."""

from __future__ import annotations

import threading

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import (
    API_VERSION,
    CONTEXT_EXTENSION,
    DEVICE_EXTENSION,
    DRIVER_UUID,
    GRAPH_EXTENSION,
    GRAPH_EXTENSION_VERSION,
    MUTABLE_EXTENSION,
    PROFILING_EXTENSION,
    QUEUE_EXTENSION,
    SYSTEM_MEMORY_EXTENSION,
    VENDOR_INTEL,
    DeviceFlag,
    DeviceType,
    ExternalMemory,
    InitDriverType,
    MemoryAccess,
    QueueGroupFlag,
    Requirements,
)
from tests.conformance.models import Model
from tests.conformance.rig import DEADLINE, SECOND, Rig
from tests.support.waiting import wait_until

# index of the device of the suite's daemon: id, SIMD width, slices, clock in Hz, execution units, ns per tick
PLATFORMS = {
    0: (0x643E, 4096, 6, 1_950_000_000, 12288, 52),
    1: (0x7D1D, 4096, 2, 1_400_000_000, 4096, 26),
    2: (0xB03E, 8192, 3, 1_950_000_000, None, None),
}
TELLS_GOPS = 1715354569
"""From this version on OpenVINO computes DEVICE_GOPS from a driver's clock, slices and SIMD width."""
EXTENSIONS = {
    GRAPH_EXTENSION: GRAPH_EXTENSION_VERSION,
    PROFILING_EXTENSION: 1 << 16,
    QUEUE_EXTENSION: 1 << 16 | 1,
    CONTEXT_EXTENSION: 1 << 16,
    MUTABLE_EXTENSION: 1 << 16 | 1,
    SYSTEM_MEMORY_EXTENSION: 1 << 16,
    DEVICE_EXTENSION: 1 << 16,
}
_WITHOUT_FUNCTIONS = (MUTABLE_EXTENSION, SYSTEM_MEMORY_EXTENSION)


def test_drivers_are_found_with_the_npu_flag(rig: Rig) -> None:
    for flags in (InitDriverType.NPU, InitDriverType.NPU | InitDriverType.GPU):
        assert len(rig.api.ze_init_drivers(flags).get()) == 1
    assert rig.api.ze_init_drivers(InitDriverType.GPU).result == ZeResult.ERROR_UNINITIALIZED


def test_driver_is_the_npu_driver(rig: Rig) -> None:
    assert rig.api.ze_driver_get_api_version(rig.driver).get() == API_VERSION
    properties = rig.api.ze_driver_get_properties(rig.driver).get()
    assert properties.uuid == DRIVER_UUID
    assert properties.driver_version >= TELLS_GOPS
    assert rig.api.ze_driver_get_ipc_properties(rig.driver).get() == 0


def test_last_error_of_a_thread_is_described_to_it_alone(rig: Rig) -> None:
    def describe() -> str:
        return rig.api.ze_driver_get_last_error_description(rig.driver).get()

    assert rig.api.ze_mem_free(rig.context, 0x1234) == ZeResult.ERROR_INVALID_ARGUMENT
    others: list[str] = []
    other = threading.Thread(target=lambda: others.append(describe()))
    other.start()
    other.join(DEADLINE / SECOND)
    assert others == [""]
    assert describe().partition(":")[0] == "zeMemFree"
    assert "0x1234" in describe()


def test_extensions_are_listed_with_their_versions(rig: Rig) -> None:
    found = rig.api.ze_driver_get_extension_properties(rig.driver).get()
    assert EXTENSIONS.items() <= {entry.name: entry.version for entry in found}.items()


def test_extension_tables_are_found_by_name(rig: Rig) -> None:
    older = [f"{GRAPH_EXTENSION}_1_{minor}" for minor in range(2, 9)]
    for name in [*older, *(name for name in EXTENSIONS if name not in _WITHOUT_FUNCTIONS)]:
        assert rig.api.ze_driver_get_extension_function_address(rig.driver, name).get()
    found = rig.api.ze_driver_get_extension_function_address(rig.driver, "ZE_extension_of_nobody")
    assert found.result == ZeResult.ERROR_INVALID_ARGUMENT


@pytest.mark.parametrize("index", PLATFORMS)
def test_device_has_the_identity_of_its_platform(rig: Rig, index: int) -> None:
    device_id, simd, slices, clock, units, tick = PLATFORMS[index]
    found = rig.api.ze_device_get_properties(rig.devices[index]).get()
    assert found.device_id == device_id
    assert found.physical_eu_simd_width == simd
    assert found.num_slices == slices
    assert found.core_clock_rate == clock
    assert found.num_subslices_per_slice == 1
    assert units is None or found.num_eus_per_subslice == units
    assert tick is None or found.timer_resolution == tick


def test_device_is_an_integrated_npu_of_intel_with_its_limits(rig: Rig) -> None:
    found = rig.api.ze_device_get_properties(rig.device).get()
    assert found.type == DeviceType.VPU
    assert found.vendor_id == VENDOR_INTEL
    assert found.flags == DeviceFlag.INTEGRATED
    assert found.name == "Intel(R) AI Boost"
    assert len(found.uuid) == 16
    assert found.max_hardware_contexts == 64
    assert found.max_command_queue_priority == 2
    assert found.num_threads_per_eu == 1
    assert found.timestamp_valid_bits == 64
    assert found.max_mem_alloc_size > 1 << 20
    # the newer structure has cycles per second
    newer = rig.api.ze_device_get_properties(rig.device, version=(1, 2)).get()
    assert newer.timer_resolution == pytest.approx(1e9 / 52, rel=0.01)


def test_devices_have_uuids_and_pci_addresses_of_their_own(rig: Rig) -> None:
    count = len(rig.devices)
    assert len({rig.api.ze_device_get_properties(device).get().uuid for device in rig.devices}) == count
    assert len({rig.api.ze_device_pci_get_properties_ext(device).get() for device in rig.devices}) == count


def test_device_has_no_sub_devices_peers_compute_and_images(rig: Rig) -> None:
    api, device = rig.api, rig.device
    assert list(api.ze_device_get_sub_devices(device).get()) == []
    assert api.ze_device_get_p2p_properties(device, device).get() == 0
    assert not any(api.ze_device_get_compute_properties(device).get())
    assert not any(api.ze_device_get_image_properties(device).get())


def test_device_has_one_memory_called_ddr(rig: Rig) -> None:
    (found,) = rig.api.ze_device_get_memory_properties(rig.device).get()
    assert (found.name, found.max_clock_rate, found.max_bus_width, found.total_size) == ("DDR", 0, 0, 0)


def test_memory_is_accessed_atomically_and_shared_as_dma_buf(rig: Rig) -> None:
    access = rig.api.ze_device_get_memory_access_properties(rig.device).get()
    assert access.host == access.device == MemoryAccess.RW | MemoryAccess.ATOMIC
    external = rig.api.ze_device_get_external_memory_properties(rig.device).get()
    assert external.allocation_import_types == ExternalMemory.DMA_BUF | ExternalMemory.STANDARD_ALLOCATION
    assert external.allocation_export_types & ExternalMemory.DMA_BUF


def test_device_has_one_queue_group_that_computes_and_copies(rig: Rig) -> None:
    (found,) = rig.api.ze_device_get_command_queue_group_properties(rig.device).get()
    assert found.flags == QueueGroupFlag.COMPUTE | QueueGroupFlag.COPY
    assert found.num_queues == 1
    assert found.max_memory_fill_pattern_size == 4


def test_global_timestamps_go_forward_together(rig: Rig) -> None:
    first = rig.api.ze_device_get_global_timestamps(rig.device).get()
    second = rig.api.ze_device_get_global_timestamps(rig.device).get()
    assert second.host > first.host
    assert second.device >= first.device


def test_global_timestamps_tick_at_the_timer_resolution(rig: Rig) -> None:
    first = rig.api.ze_device_get_global_timestamps(rig.device).get()
    while (
        second := rig.api.ze_device_get_global_timestamps(rig.device).get()
    ).host < first.host + 20_000_000:
        pass
    ticks, spent = second.device - first.device, second.host - first.host
    assert spent / ticks == pytest.approx(52, rel=0.2)


def test_requirements_of_a_graph_are_met_by_its_platform_alone(rig: Rig, model: Model) -> None:
    text = rig.api.ze_device_get_runtime_requirements(rig.device, rig.graph(model)).get()
    assert text == "softnpu=[blob=1;npu=4000]"
    assert text.startswith(rig.api.ze_device_get_runtime_requirements_key(rig.device).get())
    for device, given, expected in (
        (0, text, Requirements.MET),
        (1, text, Requirements.NOT_MET),
        (0, text.replace("blob=1", "blob=2"), Requirements.NOT_MET),
        (0, "anything", Requirements.NOT_APPLICABLE),
        (0, "", Requirements.NOT_APPLICABLE),
    ):
        found = rig.api.ze_device_validate_runtime_requirements(rig.devices[device], given).get()
        assert found == expected, (device, given)


def test_sysman_names_an_npu_of_intel(rig: Rig) -> None:
    found = rig.api.zes_device_get_properties(rig.device).get()
    assert found.brand_name == "NPU"
    assert found.vendor_name == "INTEL"
    assert "npu-linux-driver" in found.driver_version


def test_sysman_engine_is_busy_while_it_works(rig: Rig) -> None:
    (engine,) = rig.api.zes_device_enum_engine_groups(rig.device).get()
    before = rig.api.zes_engine_get_activity(engine).get()
    memory = rig.host(1 << 22)
    work = rig.copy_list(memory, memory, 1 << 22)
    queue = rig.queue()
    for _ in range(20):
        rig.submit(queue, work)
        rig.finish(queue)
    # the engine flushes its counters once a millisecond, or when it goes to sleep
    wait_until(lambda: rig.api.zes_engine_get_activity(engine).get().active_time_us > before.active_time_us)
    after = rig.api.zes_engine_get_activity(engine).get()
    assert after.timestamp_us > before.timestamp_us
    assert 0 < after.active_time_us - before.active_time_us <= after.timestamp_us - before.timestamp_us
