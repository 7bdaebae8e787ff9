"""Mutable command lists: other arguments in recorded commands (facts 3.5)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import MutableFlag
from tests.conformance.api.structures import (
    Handle,
    MutableCommandIdDesc,
    MutableCommandsDesc,
    MutableGraphArgument,
    Pointer,
)
from tests.conformance.models import COUNT, FACTOR, Model
from tests.conformance.rig import Rig, ok

SIZE = COUNT * 4
NEXT = MutableCommandIdDesc(MutableFlag.GRAPH_ARGUMENTS)


@dataclass
class Recorded:
    """A closed mutable list with one inference, and what it was recorded with."""

    rig: Rig
    graph: Handle
    list: Handle
    command_id: int
    left: Pointer
    right: Pointer
    output: Pointer
    queue: Handle

    def run(self) -> None:
        self.rig.submit(self.queue, self.list)
        self.rig.finish(self.queue)

    def update(self, *chain: MutableGraphArgument, flags: int = 0) -> ZeResult:
        desc = MutableCommandsDesc(chain, flags)
        return self.rig.api.ze_command_list_update_mutable_commands_exp(self.list, desc)

    def first(self, pointer: Pointer) -> float:
        """The first number at `pointer`."""
        value: float = struct.unpack("<f", self.rig.api.read(pointer, 4))[0]
        return value


def numbers(rig: Rig, value: float) -> Pointer:
    return rig.data(struct.pack(f"<{COUNT}f", *[value] * COUNT))


@pytest.fixture
def recorded(rig: Rig, model: Model) -> Recorded:
    graph, queue = rig.graph(model), rig.queue()
    left, right, output = numbers(rig, 1), numbers(rig, 2), rig.host(SIZE)
    rig.bind(graph, left, right, output)
    command_list = rig.command_list(mutable=True)
    number = rig.api.ze_command_list_get_next_command_id_exp(command_list, NEXT).get()
    ok(rig.api.ze_command_list_append_graph_execute(command_list, graph))
    rig.close(command_list)
    return Recorded(rig, graph, command_list, number, left, right, output, queue)


def test_mutable_list_runs_as_recorded(recorded: Recorded) -> None:
    recorded.run()
    assert recorded.first(recorded.output) == 1 + 2 * FACTOR


def test_updated_input_is_used_by_the_next_execution(recorded: Recorded) -> None:
    recorded.run()
    ok(recorded.update(MutableGraphArgument(recorded.command_id, 0, numbers(recorded.rig, 10))))
    recorded.rig.close(recorded.list)
    recorded.run()
    assert recorded.first(recorded.output) == 10 + 2 * FACTOR


def test_updated_output_is_used_by_the_next_execution(recorded: Recorded) -> None:
    recorded.run()
    other = recorded.rig.host(SIZE)
    ok(recorded.update(MutableGraphArgument(recorded.command_id, 2, other)))
    recorded.rig.close(recorded.list)
    recorded.rig.api.write(recorded.output, bytes(SIZE))
    recorded.run()
    assert recorded.first(other) == 1 + 2 * FACTOR
    assert recorded.first(recorded.output) == 0


def test_several_arguments_are_updated_at_once(recorded: Recorded) -> None:
    rig, number = recorded.rig, recorded.command_id
    ok(
        recorded.update(
            MutableGraphArgument(number, 0, numbers(rig, 3)), MutableGraphArgument(number, 1, numbers(rig, 4))
        )
    )
    rig.close(recorded.list)
    recorded.run()
    assert recorded.first(recorded.output) == 3 + 4 * FACTOR


def test_update_takes_interior_pointers(recorded: Recorded) -> None:
    rig = recorded.rig
    block = rig.host(SIZE * 3)
    rig.api.write(block + SIZE, struct.pack(f"<{COUNT}f", *[5.0] * COUNT))
    ok(recorded.update(MutableGraphArgument(recorded.command_id, 0, block + SIZE)))
    rig.close(recorded.list)
    recorded.run()
    assert recorded.first(recorded.output) == 5 + 2 * FACTOR


def test_update_does_not_change_the_graph(recorded: Recorded) -> None:
    rig = recorded.rig
    ok(recorded.update(MutableGraphArgument(recorded.command_id, 0, numbers(rig, 10))))
    rig.close(recorded.list)
    plain = rig.command_list()
    ok(rig.api.ze_command_list_append_graph_execute(plain, recorded.graph))
    rig.run(plain)
    assert recorded.first(recorded.output) == 1 + 2 * FACTOR


def test_update_does_not_change_another_command_of_the_graph(rig: Rig, model: Model) -> None:
    graph, queue, command_list = rig.graph(model), rig.queue(), rig.command_list(mutable=True)
    outputs, ids = [rig.host(SIZE), rig.host(SIZE)], []
    for output in outputs:
        rig.bind(graph, numbers(rig, 1), numbers(rig, 2), output)
        ids.append(rig.api.ze_command_list_get_next_command_id_exp(command_list, NEXT).get())
        ok(rig.api.ze_command_list_append_graph_execute(command_list, graph))
    assert ids[0] != ids[1]
    rig.close(command_list)
    chain = (MutableGraphArgument(ids[1], 0, numbers(rig, 10)),)
    ok(rig.api.ze_command_list_update_mutable_commands_exp(command_list, MutableCommandsDesc(chain)))
    rig.close(command_list)
    rig.submit(queue, command_list)
    rig.finish(queue)
    found = [struct.unpack("<f", rig.api.read(output, 4))[0] for output in outputs]
    assert found == [1 + 2 * FACTOR, 10 + 2 * FACTOR]


def test_update_between_submission_and_end_does_not_change_what_was_submitted(rig: Rig, model: Model) -> None:
    graph, gate, queue = rig.graph(model), rig.event(), rig.queue()
    output, command_list = rig.host(SIZE), rig.command_list(mutable=True)
    rig.bind(graph, numbers(rig, 1), numbers(rig, 2), output)
    ok(rig.api.ze_command_list_append_wait_on_events(command_list, 1, [gate]))
    number = rig.api.ze_command_list_get_next_command_id_exp(command_list, NEXT).get()
    ok(rig.api.ze_command_list_append_graph_execute(command_list, graph))
    rig.close(command_list)
    rig.submit(queue, command_list)
    chain = (MutableGraphArgument(number, 0, numbers(rig, 10)),)
    ok(rig.api.ze_command_list_update_mutable_commands_exp(command_list, MutableCommandsDesc(chain)))
    ok(rig.api.ze_event_host_signal(gate))
    rig.finish(queue)
    assert struct.unpack("<f", rig.api.read(output, 4)) == (1 + 2 * FACTOR,)


def test_next_command_id_is_the_number_of_commands_so_far(rig: Rig) -> None:
    command_list, found = rig.command_list(mutable=True), []
    for _ in range(3):
        found.append(rig.api.ze_command_list_get_next_command_id_exp(command_list, NEXT).get())
        ok(rig.api.ze_command_list_append_barrier(command_list))
    assert found == [found[0], found[0] + 1, found[0] + 2]


def test_older_flag_for_graph_arguments_is_accepted(rig: Rig) -> None:
    desc = MutableCommandIdDesc(MutableFlag.GRAPH_ARGUMENTS_DEPRECATED)
    found = rig.api.ze_command_list_get_next_command_id_exp(rig.command_list(mutable=True), desc)
    assert found.result == ZeResult.SUCCESS


@pytest.mark.parametrize("flags", [0, MutableFlag.KERNEL_ARGUMENTS, 2, 64 | 128])
def test_next_command_id_with_another_flag_is_an_invalid_argument(rig: Rig, flags: int) -> None:
    desc = MutableCommandIdDesc(flags)
    found = rig.api.ze_command_list_get_next_command_id_exp(rig.command_list(mutable=True), desc)
    assert found.result == ZeResult.ERROR_INVALID_ARGUMENT


def test_next_command_id_of_a_closed_list_is_an_invalid_argument(recorded: Recorded) -> None:
    found = recorded.rig.api.ze_command_list_get_next_command_id_exp(recorded.list, NEXT)
    assert found.result == ZeResult.ERROR_INVALID_ARGUMENT


def test_flags_of_the_update_are_an_invalid_argument(recorded: Recorded) -> None:
    chain = MutableGraphArgument(recorded.command_id, 0, recorded.left)
    assert recorded.update(chain, flags=1) == ZeResult.ERROR_INVALID_ARGUMENT


def test_empty_update_is_an_invalid_argument(recorded: Recorded) -> None:
    assert recorded.update() == ZeResult.ERROR_INVALID_ARGUMENT


def test_update_of_an_ordinary_list_is_an_invalid_argument(rig: Rig, model: Model) -> None:
    graph, command_list = rig.graph(model), rig.command_list()
    rig.bind(graph, *(rig.host(SIZE) for _ in range(3)))
    ok(rig.api.ze_command_list_append_graph_execute(command_list, graph))
    rig.close(command_list)
    desc = MutableCommandsDesc((MutableGraphArgument(0, 0, rig.host(SIZE)),))
    result = rig.api.ze_command_list_update_mutable_commands_exp(command_list, desc)
    assert result == ZeResult.ERROR_INVALID_ARGUMENT


def test_refused_update_leaves_the_list_as_it_was(recorded: Recorded) -> None:
    good = MutableGraphArgument(recorded.command_id, 0, numbers(recorded.rig, 10))
    bad = MutableGraphArgument(recorded.command_id + 77, 0, recorded.left)
    assert recorded.update(good, bad) == ZeResult.ERROR_INVALID_ARGUMENT
    recorded.run()
    assert recorded.first(recorded.output) == 1 + 2 * FACTOR


def test_null_arguments_are_refused(rig: Rig) -> None:
    api, command_list = rig.api, rig.command_list(mutable=True)
    null_handle, null_pointer = ZeResult.ERROR_INVALID_NULL_HANDLE, ZeResult.ERROR_INVALID_NULL_POINTER
    assert api.ze_command_list_get_next_command_id_exp(None, NEXT).result == null_handle
    assert api.ze_command_list_get_next_command_id_exp(command_list, None).result == null_pointer
    assert api.ze_command_list_get_next_command_id_exp(command_list, NEXT, out=False).result == null_pointer
    assert api.ze_command_list_update_mutable_commands_exp(command_list, None) == null_pointer
    update = MutableCommandsDesc((MutableGraphArgument(0, 0, rig.host(8)),))
    assert api.ze_command_list_update_mutable_commands_exp(None, update) == null_handle
