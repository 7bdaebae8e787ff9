"""Strided arguments (facts 3.5): elements between the steps of each dimension, innermost first."""

from __future__ import annotations

import struct
from collections.abc import Sequence

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
from tests.conformance.models import COUNT, FACTOR, Model
from tests.conformance.rig import Rig, ok

STRIDED = models.build_flags(config='NPU_ENABLE_STRIDES_FOR="0"')
EVERY_SECOND = StridesValue((2, 2 * COUNT, 0, 0, 0))


def spaced(rig: Rig, values: Sequence[float]) -> Pointer:
    """Memory in which every second number is one of `values`."""
    mixed = [number for value in values for number in (value, -1000.0)]
    return rig.data(struct.pack(f"<{2 * COUNT}f", *mixed))


def dense(rig: Rig, values: Sequence[float]) -> Pointer:
    return rig.data(struct.pack(f"<{COUNT}f", *values))


@pytest.fixture
def graph(rig: Rig, model: Model) -> Handle:
    """A graph whose first input takes strides; the other arguments are set."""
    made = rig.graph(model, build_flags=STRIDED)
    ok(rig.api.ze_graph_set_argument_value(made, 1, dense(rig, [1.0] * COUNT)))
    return made


def outcome(rig: Rig, graph: Handle) -> list[float]:
    """The output of one inference."""
    output, command_list = rig.host(COUNT * 4), rig.command_list()
    ok(rig.api.ze_graph_set_argument_value(graph, 2, output))
    ok(rig.api.ze_command_list_append_graph_execute(command_list, graph))
    rig.run(command_list)
    return list(struct.unpack(f"<{COUNT}f", rig.api.read(output, COUNT * 4)))


def test_strided_input_is_read_with_its_strides(rig: Rig, graph: Handle) -> None:
    values = [float(at) for at in range(COUNT)]
    ok(rig.api.ze_graph_set_argument_value2(graph, 0, [TensorValue(spaced(rig, values)), EVERY_SECOND]))
    assert outcome(rig, graph) == [value + FACTOR for value in values]


def test_set_argument_value_clears_the_strides(rig: Rig, graph: Handle) -> None:
    values = [float(at) for at in range(COUNT)]
    ok(rig.api.ze_graph_set_argument_value2(graph, 0, [TensorValue(spaced(rig, values)), EVERY_SECOND]))
    ok(rig.api.ze_graph_set_argument_value(graph, 0, dense(rig, values)))
    assert outcome(rig, graph) == [value + FACTOR for value in values]


def test_tensor_alone_sets_a_dense_argument(rig: Rig, graph: Handle) -> None:
    values = [float(at) for at in range(COUNT)]
    ok(rig.api.ze_graph_set_argument_value2(graph, 0, [TensorValue(dense(rig, values))]))
    assert outcome(rig, graph) == [value + FACTOR for value in values]


def test_strides_of_another_argument_are_an_invalid_argument(rig: Rig, graph: Handle) -> None:
    chain: list[TensorValue | StridesValue] = [TensorValue(spaced(rig, [0.0] * COUNT)), EVERY_SECOND]
    assert rig.api.ze_graph_set_argument_value2(graph, 1, chain) == ZeResult.ERROR_INVALID_ARGUMENT


def test_strides_without_the_option_are_an_invalid_argument(rig: Rig, model: Model) -> None:
    chain: list[TensorValue | StridesValue] = [TensorValue(spaced(rig, [0.0] * COUNT)), EVERY_SECOND]
    result = rig.api.ze_graph_set_argument_value2(rig.graph(model), 0, chain)
    assert result == ZeResult.ERROR_INVALID_ARGUMENT


@pytest.mark.parametrize("version", ["", "2", "3"])
def test_argument_properties_tell_who_takes_strides(rig: Rig, graph: Handle, version: str) -> None:
    ask = getattr(rig.api, f"ze_graph_get_argument_properties{version}")
    found = [ask(graph, index).get() for index in range(3)]
    assert [entry.supports_strides for entry in found] == [True, False, False]


def test_strides_can_be_mutated_and_are_erased_when_left_out(rig: Rig, graph: Handle) -> None:
    values = [float(at) for at in range(COUNT)]
    output, command_list, queue = rig.host(COUNT * 4), rig.command_list(mutable=True), rig.queue()
    rig.bind(graph, dense(rig, [0.0] * COUNT), dense(rig, [1.0] * COUNT), output)
    desc = MutableCommandIdDesc(MutableFlag.GRAPH_ARGUMENTS)
    number = rig.api.ze_command_list_get_next_command_id_exp(command_list, desc).get()
    ok(rig.api.ze_command_list_append_graph_execute(command_list, graph))
    rig.close(command_list)
    strided = (
        MutableGraphArgument(number, 0, spaced(rig, values)),
        MutableGraphStrides(EVERY_SECOND.strides),
    )
    for chain in (strided, (MutableGraphArgument(number, 0, dense(rig, values)),)):
        rig.api.write(output, bytes(COUNT * 4))
        ok(rig.api.ze_command_list_update_mutable_commands_exp(command_list, MutableCommandsDesc(chain)))
        rig.close(command_list)
        rig.submit(queue, command_list)
        rig.finish(queue)
        found = list(struct.unpack(f"<{COUNT}f", rig.api.read(output, COUNT * 4)))
        assert found == [value + FACTOR for value in values]


def test_strides_before_their_argument_are_an_invalid_argument(rig: Rig, graph: Handle) -> None:
    command_list = rig.command_list(mutable=True)
    rig.bind(graph, *(rig.host(COUNT * 4) for _ in range(3)))
    desc = MutableCommandIdDesc(MutableFlag.GRAPH_ARGUMENTS)
    number = rig.api.ze_command_list_get_next_command_id_exp(command_list, desc).get()
    ok(rig.api.ze_command_list_append_graph_execute(command_list, graph))
    rig.close(command_list)
    chain = (
        MutableGraphStrides(EVERY_SECOND.strides),
        MutableGraphArgument(number, 0, spaced(rig, [0.0] * COUNT)),
    )
    result = rig.api.ze_command_list_update_mutable_commands_exp(command_list, MutableCommandsDesc(chain))
    assert result == ZeResult.ERROR_INVALID_ARGUMENT
