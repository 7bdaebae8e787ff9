"""Mutable command lists: changed arguments in recorded commands."""

from __future__ import annotations

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
from tests.conformance.commands import barrier, infer, wait
from tests.conformance.models import COUNT, FACTOR, SIZE, Model
from tests.conformance.rig import Rig, ok, packed

NEXT = MutableCommandIdDesc(MutableFlag.GRAPH_ARGUMENTS)
INVALID = ZeResult.ERROR_INVALID_ARGUMENT
AS_RECORDED = 1 + 2 * FACTOR


@dataclass
class Recorded:
    """A closed mutable list with two inferences of one graph behind a gate, and its recorded arguments."""

    rig: Rig
    graph: Handle
    commands: Handle
    ids: list[int]
    outputs: list[Pointer]
    gate: Handle
    queue: Handle

    def run(self) -> list[float]:
        """Run it; return the first value of each output."""
        self.rig.signal(self.gate)
        self.rig.submit(self.queue, self.commands)
        self.rig.finish(self.queue)
        return [self.value(output) for output in self.outputs]

    def value(self, output: Pointer) -> float:
        values = self.rig.values(output)
        assert values == values[:1] * COUNT
        return values[0]

    def update(self, *chain: MutableGraphArgument, flags: int = 0) -> ZeResult:
        desc = MutableCommandsDesc(chain, flags)
        return self.rig.api.ze_command_list_update_mutable_commands_exp(self.commands, desc)


@pytest.fixture
def recorded(rig: Rig, model: Model) -> Recorded:
    graph, gate, command_list = rig.graph(model), rig.event(), rig.command_list(mutable=True)
    rig.append(command_list, wait(gate))
    ids, outputs = [], []
    for _ in range(2):
        outputs.append(rig.host(SIZE))
        rig.bind(graph, rig.tensor(1), rig.tensor(2), outputs[-1])
        ids.append(rig.api.ze_command_list_get_next_command_id_exp(command_list, NEXT).get())
        rig.append(command_list, infer(graph))
    assert ids[0] != ids[1]
    rig.close(command_list)
    return Recorded(rig, graph, command_list, ids, outputs, gate, rig.queue())


def test_updated_input_is_used_by_the_next_execution_of_its_command(rig: Rig, recorded: Recorded) -> None:
    assert recorded.run() == [AS_RECORDED, AS_RECORDED]
    ok(recorded.update(MutableGraphArgument(recorded.ids[1], 0, rig.tensor(10))))
    rig.close(recorded.commands)
    assert recorded.run() == [AS_RECORDED, 10 + 2 * FACTOR]


def test_updated_output_is_used_by_the_next_execution(rig: Rig, recorded: Recorded) -> None:
    recorded.run()
    other = rig.host(SIZE)
    ok(recorded.update(MutableGraphArgument(recorded.ids[0], 2, other)))
    rig.close(recorded.commands)
    rig.api.write(recorded.outputs[0], bytes(SIZE))
    assert recorded.run() == [0, AS_RECORDED]
    assert recorded.value(other) == AS_RECORDED


def test_several_arguments_are_updated_at_once_also_with_interior_pointers(
    rig: Rig, recorded: Recorded
) -> None:
    block = rig.host(SIZE * 3)
    rig.api.write(block + SIZE, packed(3))
    arguments = [(0, block + SIZE), (1, rig.tensor(4))]
    ok(recorded.update(*(MutableGraphArgument(recorded.ids[0], *entry) for entry in arguments)))
    rig.close(recorded.commands)
    assert recorded.run()[0] == 3 + 4 * FACTOR


def test_update_does_not_change_the_graph(rig: Rig, recorded: Recorded) -> None:
    ok(recorded.update(MutableGraphArgument(recorded.ids[1], 0, rig.tensor(10))))
    rig.close(recorded.commands)
    rig.execute(infer(recorded.graph))
    assert recorded.value(recorded.outputs[1]) == AS_RECORDED


def test_update_does_not_change_what_was_submitted(rig: Rig, recorded: Recorded) -> None:
    rig.submit(recorded.queue, recorded.commands)
    ok(recorded.update(MutableGraphArgument(recorded.ids[0], 0, rig.tensor(10))))
    rig.signal(recorded.gate)
    rig.finish(recorded.queue)
    assert recorded.value(recorded.outputs[0]) == AS_RECORDED


def test_next_command_id_is_the_number_of_commands_so_far(rig: Rig) -> None:
    command_list, found = rig.command_list(mutable=True), []
    older = MutableCommandIdDesc(MutableFlag.GRAPH_ARGUMENTS_DEPRECATED)
    for desc in (NEXT, older, NEXT):
        found.append(rig.api.ze_command_list_get_next_command_id_exp(command_list, desc).get())
        rig.append(command_list, barrier())
    assert found == [found[0], found[0] + 1, found[0] + 2]


def test_wrong_questions_for_a_command_id_are_invalid_arguments(rig: Rig, recorded: Recorded) -> None:
    ask, mutable = rig.api.ze_command_list_get_next_command_id_exp, rig.command_list(mutable=True)
    for flags in (0, MutableFlag.KERNEL_ARGUMENTS, 2, 64 | 128):
        assert ask(mutable, MutableCommandIdDesc(flags)).result == INVALID
    assert ask(recorded.commands, NEXT).result == INVALID  # already closed


def test_wrong_updates_are_invalid_arguments_and_change_nothing(rig: Rig, recorded: Recorded) -> None:
    good = MutableGraphArgument(recorded.ids[0], 0, rig.tensor(10))
    bad = MutableGraphArgument(recorded.ids[1] + 77, 0, good.value)
    assert recorded.update() == INVALID
    assert recorded.update(good, flags=1) == INVALID
    assert recorded.update(good, bad) == INVALID
    assert recorded.run() == [AS_RECORDED, AS_RECORDED]
    ordinary = rig.recorded(infer(recorded.graph))
    desc = MutableCommandsDesc((MutableGraphArgument(0, 0, good.value),))
    assert rig.api.ze_command_list_update_mutable_commands_exp(ordinary, desc) == INVALID


def test_memory_that_no_argument_names_any_more_is_given_back(rig: Rig, recorded: Recorded) -> None:
    """A program that uses new memory at each step needs no more than one that does not."""
    for output in recorded.outputs:
        ok(rig.api.ze_mem_free(rig.context, output))
    recorded.outputs.clear()
    used = []
    for _ in range(20):
        for number in recorded.ids:
            output = rig.host(SIZE)
            ok(recorded.update(MutableGraphArgument(number, 2, output)))
            ok(rig.api.ze_mem_free(rig.context, output))
        recorded.run()
        used.append(rig.memory_in_use())
    assert len(set(used[1:])) == 1, used


def test_mutations_without_a_submission_keep_no_memory(rig: Rig, recorded: Recorded) -> None:
    used = []
    for _ in range(500):
        output = rig.host(SIZE)
        ok(recorded.update(MutableGraphArgument(recorded.ids[0], 2, output)))
        ok(rig.api.ze_mem_free(rig.context, output))
        used.append(rig.memory_in_use())
    assert max(used[250:]) <= max(used[:250])
