"""Events that forget, and waits that do not wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import Answer, EventDesc, Handle, Handles, Pointer
from tests.conformance.defects.defect import caught_by
from tests.conformance.python_driver import PythonDriver


@caught_by("test_events.py::test_event_stays_signalled_until_it_is_reset")
class ResetsItself(PythonDriver):
    """An event is reset as soon as somebody has seen that it was signalled."""

    def ze_event_query_status(self, event: Handle) -> ZeResult:
        return self._seen(event, super().ze_event_query_status(event))

    def ze_event_host_synchronize(self, event: Handle, timeout: int) -> ZeResult:
        return self._seen(event, super().ze_event_host_synchronize(event, timeout))

    def _seen(self, event: Handle, result: ZeResult) -> ZeResult:
        if result == ZeResult.SUCCESS:
            self.ze_event_host_reset(event)
        return result


@caught_by("test_events.py::test_device_waits_for_a_host_signal")
class IgnoresWaits(PythonDriver):
    """A list does not wait for events."""

    def ze_command_list_append_wait_on_events(
        self, command_list: Handle, count: int, events: Handles
    ) -> ZeResult:
        if events and None not in events:
            return self.ze_command_list_append_barrier(command_list)
        return super().ze_command_list_append_wait_on_events(command_list, count, events)


@caught_by("test_commands.py::test_command_waits_for_its_events_and_signals_another[copy]")
class IgnoresWaitEventsOfCopies(PythonDriver):
    """A copy does not wait for its events."""

    def ze_command_list_append_memory_copy(
        self, command_list: Handle, target: Pointer, source: Pointer, size: int, *events: Any
    ) -> ZeResult:
        return super().ze_command_list_append_memory_copy(command_list, target, source, size, *events[:1])


@caught_by("test_events.py::test_host_reset_acts_at_once")
class HostResetDoesNothing(PythonDriver):
    """An event stays signalled when the host resets it."""

    def ze_event_host_reset(self, event: Handle) -> ZeResult:
        return ZeResult.ERROR_INVALID_NULL_HANDLE if event is None else ZeResult.SUCCESS


@caught_by("test_events.py::test_used_index_is_an_invalid_argument")
class SharesIndices(PythonDriver):
    """A used index of a pool gives the event that is there, instead of an error."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._events: dict[tuple[int, int], Answer[Handle]] = {}

    def ze_event_create(self, pool: Handle, desc: EventDesc | None, out: bool = True) -> Answer[Handle]:
        if pool is None or desc is None or not out:
            return super().ze_event_create(pool, desc, out)
        key = (id(pool), desc.index)
        if key not in self._events:
            self._events[key] = super().ze_event_create(pool, desc, out)
        return self._events[key]
