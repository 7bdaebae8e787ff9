"""States of changing shape (docs/interface.md, 14.4): both drivers provide everything that programs need."""

from __future__ import annotations

import struct

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance import models
from tests.conformance.api.structures import Handle, Pointer
from tests.conformance.models import Model
from tests.conformance.rig import Rig, ok

WIDTH = 3
NAMES = [
    "x", "vpux_ie_read_value_rows", "vpux_ie_shape_x", "vpux_ie_shape_vpux_ie_read_value_rows",
    "y", "vpux_ie_assign_rows", "vpux_ie_shape_vpux_ie_assign_rows",
]  # fmt: skip
ROOM = 64 * WIDTH * 4


@pytest.fixture(scope="module")
def growing() -> Model:
    return models.growing_rows(WIDTH)


@pytest.fixture
def graph(rig: Rig, growing: Model) -> Handle:
    return rig.graph(growing, build_flags='--config NPU_STATES_DYNAMIC="YES"')


def integers(rig: Rig, pointer: Pointer) -> list[int]:
    return list(struct.unpack("<2i", rig.api.read(pointer, 8)))


def test_a_state_and_its_shape_are_arguments(rig: Rig, graph: Handle) -> None:
    ask = rig.api.ze_graph_get_argument_properties3
    assert [ask(graph, index).get().name for index in range(len(NAMES))] == NAMES


def test_each_execution_goes_on_with_the_rows_and_the_shape_of_the_last(rig: Rig, graph: Handle) -> None:
    x, y, x_shape = rig.host(ROOM), rig.host(WIDTH * 4), rig.host(8)
    buffers = [(rig.host(ROOM), rig.host(8)) for _ in range(2)]
    rig.api.write(buffers[0][1], struct.pack("<2i", -1, -1))  # begins with its initial value
    rows = 0
    for step, count in enumerate((2, 1, 5)):
        (read, read_shape), (written, written_shape) = buffers[step % 2], buffers[1 - step % 2]
        rig.bind(graph, x, read, x_shape, read_shape, y, written, written_shape)
        commands = rig.command_list()
        ok(rig.api.ze_command_list_append_graph_execute(commands, graph))
        rig.api.write(x, struct.pack(f"<{count * WIDTH}f", *[float(step + 1)] * (count * WIDTH)))
        rig.api.write(x_shape, struct.pack("<2i", WIDTH, count))
        rig.run(commands)
        rows += count
        assert integers(rig, written_shape) == [WIDTH, rows]
    total = 2 * 1.0 + 1 * 2.0 + 5 * 3.0
    assert struct.unpack(f"<{WIDTH}f", rig.api.read(y, WIDTH * 4)) == (total,) * WIDTH
    expected = [1.0] * 2 + [2.0] + [3.0] * 5
    found = struct.unpack(f"<{rows * WIDTH}f", rig.api.read(buffers[1][0], rows * WIDTH * 4))
    assert found == tuple(value for value in expected for _ in range(WIDTH))


def test_without_the_property_such_a_model_is_not_supported(rig: Rig, growing: Model) -> None:
    desc = rig.model_desc(growing, build_flags="")
    created = rig.api.ze_graph_create2(rig.context, rig.device, desc)
    assert created.result == ZeResult.ERROR_UNSUPPORTED_FEATURE
