"""Who the driver and its devices say they are (facts 2.1, 2.3, 7.6)."""

from __future__ import annotations

import threading

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import (
    API_VERSION,
    CONTEXT_EXTENSION,
    DRIVER_UUID,
    GRAPH_EXTENSION,
    GRAPH_EXTENSION_VERSION,
    MUTABLE_EXTENSION,
    PROFILING_EXTENSION,
    QUEUE_EXTENSION,
    VENDOR_INTEL,
    DeviceFlag,
    DeviceType,
    ExternalMemory,
    InitDriverType,
    MemoryAccess,
    QueueGroupFlag,
)
from tests.conformance.rig import DEADLINE, SECOND, Rig, ok
from tests.support.waiting import wait_until

# platform of the suite's daemon, index: device id, SIMD width, slices, nanoseconds a tick
PLATFORMS = {
    "Lunar Lake": (0, 0x643E, 4096, 6, 52),
    "Meteor Lake": (1, 0x7D1D, 4096, 2, 26),
    "Panther Lake": (2, 0xB03E, 8192, 3, None),
}


def test_drivers_are_found_with_the_npu_flag(rig: Rig) -> None:
    assert len(rig.api.ze_init_drivers(InitDriverType.NPU).get()) == 1


def test_drivers_are_found_with_the_npu_flag_among_others(rig: Rig) -> None:
    assert len(rig.api.ze_init_drivers(InitDriverType.NPU | InitDriverType.GPU).get()) == 1


def test_drivers_of_other_types_only_are_uninitialized(rig: Rig) -> None:
    assert rig.api.ze_init_drivers(InitDriverType.GPU).result == ZeResult.ERROR_UNINITIALIZED


def test_api_version_is_the_one_of_the_headers(rig: Rig) -> None:
    assert rig.api.ze_driver_get_api_version(rig.driver).get() == API_VERSION


def test_driver_uuid_is_the_npu_driver_uuid(rig: Rig) -> None:
    properties = rig.api.ze_driver_get_properties(rig.driver).get()
    assert properties.uuid == DRIVER_UUID
    assert properties.driver_version > 0


def test_last_error_is_described(rig: Rig) -> None:
    assert rig.api.ze_mem_free(rig.context, 0x1234) == ZeResult.ERROR_INVALID_ARGUMENT
    said = rig.api.ze_driver_get_last_error_description(rig.driver).get()
    assert said.partition(":")[0] == "zeMemFree"
    assert "0x1234" in said


def test_last_error_is_the_one_of_the_calling_thread(rig: Rig) -> None:
    assert rig.api.ze_mem_free(rig.context, 0x1234) == ZeResult.ERROR_INVALID_ARGUMENT
    said: list[str] = []
    other = threading.Thread(
        target=lambda: said.append(rig.api.ze_driver_get_last_error_description(rig.driver).get())
    )
    other.start()
    other.join(DEADLINE / SECOND)
    assert said == [""]


def test_driver_has_no_ipc(rig: Rig) -> None:
    assert rig.api.ze_driver_get_ipc_properties(rig.driver).get() == 0


@pytest.mark.parametrize(
    ("name", "version"),
    [
        (GRAPH_EXTENSION, GRAPH_EXTENSION_VERSION),
        (PROFILING_EXTENSION, 1 << 16),
        (QUEUE_EXTENSION, 1 << 16 | 1),
        (CONTEXT_EXTENSION, 1 << 16),
        (MUTABLE_EXTENSION, 1 << 16 | 1),
    ],
)
def test_extension_is_listed_with_its_version(rig: Rig, name: str, version: int) -> None:
    found = rig.api.ze_driver_get_extension_properties(rig.driver).get()
    assert {entry.name: entry.version for entry in found}[name] == version


@pytest.mark.parametrize("name", [GRAPH_EXTENSION, PROFILING_EXTENSION, QUEUE_EXTENSION, CONTEXT_EXTENSION])
def test_extension_table_is_found_by_name(rig: Rig, name: str) -> None:
    assert rig.api.ze_driver_get_extension_function_address(rig.driver, name).get()


def test_graph_extension_is_found_by_its_older_names(rig: Rig) -> None:
    for minor in range(2, 9):
        name = f"{GRAPH_EXTENSION}_1_{minor}"
        assert rig.api.ze_driver_get_extension_function_address(rig.driver, name).get()


def test_unknown_extension_is_an_invalid_argument(rig: Rig) -> None:
    found = rig.api.ze_driver_get_extension_function_address(rig.driver, "ZE_extension_of_nobody")
    assert found.result == ZeResult.ERROR_INVALID_ARGUMENT


@pytest.mark.parametrize("platform", PLATFORMS)
def test_device_has_the_identity_of_its_platform(rig: Rig, platform: str) -> None:
    index, device_id, simd, slices, tick = PLATFORMS[platform]
    found = rig.api.ze_device_get_properties(rig.devices[index]).get()
    assert found.device_id == device_id
    assert found.physical_eu_simd_width == simd
    assert found.num_slices == slices
    assert found.num_subslices_per_slice == 1
    assert tick is None or found.timer_resolution == tick


@pytest.mark.parametrize(("index", "units"), [(0, 12288), (1, 4096)])
def test_device_has_the_execution_units_of_its_platform(rig: Rig, index: int, units: int) -> None:
    assert rig.api.ze_device_get_properties(rig.devices[index]).get().num_eus_per_subslice == units


def test_device_is_an_integrated_npu_of_intel(rig: Rig) -> None:
    found = rig.api.ze_device_get_properties(rig.device).get()
    assert found.type == DeviceType.VPU
    assert found.vendor_id == VENDOR_INTEL
    assert found.flags == DeviceFlag.INTEGRATED
    assert found.name == "Intel(R) AI Boost"
    assert len(found.uuid) == 16


def test_device_limits_are_those_of_the_npu(rig: Rig) -> None:
    found = rig.api.ze_device_get_properties(rig.device).get()
    assert found.max_hardware_contexts == 64
    assert found.max_command_queue_priority == 2
    assert found.num_threads_per_eu == 1
    assert found.timestamp_valid_bits == 64
    assert found.max_mem_alloc_size > 1 << 20


def test_timer_resolution_of_the_newer_structure_is_cycles_a_second(rig: Rig) -> None:
    found = rig.api.ze_device_get_properties(rig.device, version=(1, 2)).get()
    assert found.timer_resolution == pytest.approx(1e9 / 52, rel=0.01)


def test_devices_have_uuids_of_their_own(rig: Rig) -> None:
    found = {rig.api.ze_device_get_properties(device).get().uuid for device in rig.devices}
    assert len(found) == len(rig.devices)


def test_device_has_no_sub_devices(rig: Rig) -> None:
    found = rig.api.ze_device_get_sub_devices(rig.device)
    assert found.result == ZeResult.SUCCESS
    assert list(found.value or ()) == []


def test_compute_and_image_properties_are_zeros(rig: Rig) -> None:
    assert not any(rig.api.ze_device_get_compute_properties(rig.device).get())
    assert not any(rig.api.ze_device_get_image_properties(rig.device).get())


def test_device_has_one_memory_called_ddr(rig: Rig) -> None:
    (found,) = rig.api.ze_device_get_memory_properties(rig.device).get()
    assert (found.name, found.max_clock_rate, found.max_bus_width, found.total_size) == ("DDR", 0, 0, 0)


def test_host_and_device_memory_can_be_accessed_atomically(rig: Rig) -> None:
    found = rig.api.ze_device_get_memory_access_properties(rig.device).get()
    assert found.host == found.device == MemoryAccess.RW | MemoryAccess.ATOMIC


def test_memory_is_imported_and_exported_as_dma_buf(rig: Rig) -> None:
    found = rig.api.ze_device_get_external_memory_properties(rig.device).get()
    assert found.allocation_import_types & ExternalMemory.DMA_BUF
    assert found.allocation_export_types & ExternalMemory.DMA_BUF


def test_devices_are_not_peers(rig: Rig) -> None:
    assert rig.api.ze_device_get_p2p_properties(rig.device, rig.device).get() == 0


def test_device_has_one_queue_group_that_computes_and_copies(rig: Rig) -> None:
    (found,) = rig.api.ze_device_get_command_queue_group_properties(rig.device).get()
    assert found.flags == QueueGroupFlag.COMPUTE | QueueGroupFlag.COPY
    assert found.num_queues == 1
    assert found.max_memory_fill_pattern_size == 4


def test_device_status_is_success(rig: Rig) -> None:
    ok(rig.api.ze_device_get_status(rig.device))


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


def test_pci_addresses_differ(rig: Rig) -> None:
    found = {rig.api.ze_device_pci_get_properties_ext(device).get() for device in rig.devices}
    assert len(found) == len(rig.devices)


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
    # the engine writes its counters out once in a millisecond, or when it goes to sleep
    wait_until(lambda: rig.api.zes_engine_get_activity(engine).get().active_time_us > before.active_time_us)
    after = rig.api.zes_engine_get_activity(engine).get()
    assert after.timestamp_us > before.timestamp_us
    assert 0 < after.active_time_us - before.active_time_us <= after.timestamp_us - before.timestamp_us


def test_null_driver_and_device_are_refused(rig: Rig) -> None:
    null = ZeResult.ERROR_INVALID_NULL_HANDLE
    assert rig.api.ze_driver_get_properties(None).result == null
    assert rig.api.ze_driver_get_api_version(None).result == null
    assert rig.api.ze_device_get(None).result == null
    assert rig.api.ze_device_get_properties(None).result == null
    assert rig.api.ze_device_get_status(None) == null


def test_null_pointers_for_properties_are_refused(rig: Rig) -> None:
    null = ZeResult.ERROR_INVALID_NULL_POINTER
    assert rig.api.ze_driver_get_properties(rig.driver, out=False).result == null
    assert rig.api.ze_driver_get_api_version(rig.driver, out=False).result == null
    assert rig.api.ze_device_get_properties(rig.device, out=False).result == null
    assert rig.api.ze_device_get_global_timestamps(rig.device, out=False).result == null
    assert rig.api.ze_driver_get_extension_function_address(rig.driver, None).result == null
