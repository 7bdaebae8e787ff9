"""Strided arguments: elements between the steps of each dimension, innermost first."""

from __future__ import annotations

import struct

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance import models
from tests.conformance.api.enumerations import MutableFlag
from tests.conformance.api.structures import (
    Handle,
    MutableCommandIdDesc,
    MutableCommandsDesc,
    MutableGraphArgument,
    MutableGraphStrides,
    Pointer,
    StridesValue,
    TensorValue,
)
from tests.conformance.commands import infer
from tests.conformance.models import COUNT, FACTOR, SIZE, Model
from tests.conformance.rig import Rig, ok

STRIDED = models.build_flags(config='NPU_ENABLE_STRIDES_FOR="0"')
EVERY_SECOND = StridesValue((2, 2 * COUNT, 0, 0, 0))
VALUES = [float(at) for at in range(COUNT)]
EXPECTED = [value + FACTOR for value in VALUES]


def spaced(rig: Rig) -> Pointer:
    """Return memory in which every second number is one of `VALUES`."""
    mixed = [number for value in VALUES for number in (value, -1000.0)]
    return rig.data(struct.pack(f"<{2 * COUNT}f", *mixed))


@pytest.fixture
def graph(rig: Rig, model: Model) -> Handle:
    """Return a graph whose first input takes strides; the second is set."""
    made = rig.graph(model, build_flags=STRIDED)
    ok(rig.api.ze_graph_set_argument_value(made, 1, rig.tensor(1)))
    return made


def outcome(rig: Rig, graph: Handle) -> list[float]:
    """Return the output of one inference."""
    output = rig.host(SIZE)
    ok(rig.api.ze_graph_set_argument_value(graph, 2, output))
    rig.execute(infer(graph))
    return rig.values(output)


def test_arguments_are_read_with_their_last_strides(rig: Rig, graph: Handle) -> None:
    ok(rig.api.ze_graph_set_argument_value2(graph, 0, [TensorValue(spaced(rig)), EVERY_SECOND]))
    assert outcome(rig, graph) == EXPECTED
    ok(rig.api.ze_graph_set_argument_value(graph, 0, rig.tensor(VALUES)))
    assert outcome(rig, graph) == EXPECTED
    ok(rig.api.ze_graph_set_argument_value2(graph, 0, [TensorValue(rig.tensor(VALUES))]))
    assert outcome(rig, graph) == EXPECTED


def test_strides_of_what_takes_none_are_an_invalid_argument(rig: Rig, graph: Handle, model: Model) -> None:
    for target, index in ((graph, 1), (rig.graph(model), 0)):
        result = rig.api.ze_graph_set_argument_value2(target, index, [TensorValue(spaced(rig)), EVERY_SECOND])
        assert result == ZeResult.ERROR_INVALID_ARGUMENT


@pytest.mark.parametrize("version", ["", "2", "3"])
def test_argument_properties_tell_who_takes_strides(rig: Rig, graph: Handle, version: str) -> None:
    ask = getattr(rig.api, f"ze_graph_get_argument_properties{version}")
    found = [ask(graph, index).get() for index in range(3)]
    assert [entry.supports_strides for entry in found] == [True, False, False]


def test_strides_can_be_mutated_and_are_erased_when_left_out(rig: Rig, graph: Handle) -> None:
    output, command_list, queue = rig.host(SIZE), rig.command_list(mutable=True), rig.queue()
    update = rig.api.ze_command_list_update_mutable_commands_exp
    rig.bind(graph, rig.tensor(), rig.tensor(1), output)
    desc = MutableCommandIdDesc(MutableFlag.GRAPH_ARGUMENTS)
    number = rig.api.ze_command_list_get_next_command_id_exp(command_list, desc).get()
    rig.append(command_list, infer(graph))
    rig.close(command_list)
    argument = MutableGraphArgument(number, 0, spaced(rig))
    strides = MutableGraphStrides(EVERY_SECOND.strides)
    # strides belong to the preceding argument
    wrong_order = MutableCommandsDesc((strides, argument))
    assert update(command_list, wrong_order) == ZeResult.ERROR_INVALID_ARGUMENT
    for chain in ((argument, strides), (MutableGraphArgument(number, 0, rig.tensor(VALUES)),)):
        rig.api.write(output, bytes(SIZE))
        ok(update(command_list, MutableCommandsDesc(chain)))
        rig.run(command_list, queue=queue)
        assert rig.values(output) == EXPECTED
