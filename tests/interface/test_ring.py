"""The two ends of a ring, in one process."""

from __future__ import annotations

import os

import pytest

from softnpu.emulator.common import linux
from softnpu.emulator.interface import records
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.interface.ring import DeviceRing, DriverRing
from softnpu.emulator.interface.shared import SharedMapping

pytestmark = pytest.mark.quick

_SLOTS = 4
_OFFSET = 128


@pytest.fixture
def ends() -> tuple[DriverRing, DeviceRing]:
    size = _OFFSET + records.ring_size(_SLOTS)
    fd = linux.memfd("ring", size)
    try:
        return DriverRing(SharedMapping(fd, size), _OFFSET, _SLOTS), DeviceRing(
            SharedMapping(fd, size), _OFFSET, _SLOTS, 0
        )
    finally:
        os.close(fd)


def test_submissions_arrive_in_order_and_results_are_returned(ends: tuple[DriverRing, DeviceRing]) -> None:
    driver, device = ends
    for sequence in range(1, 2 * _SLOTS + 1):
        driver.fill(sequence, buffer=7, size=64, fence=9, fence_offset=128, ticket=100 + sequence)
        assert not device.pending()
        driver.publish(sequence)
        assert (device.pending(), device.waiting(), driver.tail) == (True, 1, sequence)
        number, _, ticket = device.copy_slot(sequence)
        assert (number, ticket) == (sequence, 100 + sequence)
        device.set_result(sequence, sequence)
        device.completed += 1
        assert (driver.completed, device.is_published()) == (sequence - 1, False)
        device.publish()
        assert (driver.completed, driver.result(sequence)) == (sequence, sequence)
    assert driver.slot(8) == (8, 7, 0, 64, 0, 9, 128, 108, 8, 0)


def test_the_driver_rings_the_doorbell_of_a_sleeping_device(ends: tuple[DriverRing, DeviceRing]) -> None:
    driver, device = ends
    assert not driver.needs_doorbell()
    device.set_asleep(True)
    assert driver.needs_doorbell()


def test_the_driver_does_not_sleep_for_ended_submissions(ends: tuple[DriverRing, DeviceRing]) -> None:
    driver, device = ends
    device.completed = 1
    device.publish()
    driver.sleep(1, timeout_ns=2**62)
    assert driver.waiters == 0


@pytest.mark.parametrize("length", [10, 10_000])
def test_the_reason_of_a_failure_fits_into_the_ring(ends: tuple[DriverRing, DeviceRing], length: int) -> None:
    driver, device = ends
    info = ErrorInfo(result=ZeResult.ERROR_UNKNOWN, object="submission", found="\u00e4" * length)
    device.set_failure(3, info)
    device.set_lost()
    failure = driver.failure()
    assert failure is not None
    assert (driver.failed, driver.failure_result, failure.result, driver.is_lost) == (
        3,
        info.result,
        info.result,
        True,
    )
    assert info.found.startswith(failure.found)
    assert failure.found
