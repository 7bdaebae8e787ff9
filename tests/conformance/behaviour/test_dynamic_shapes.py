"""Arguments with dynamic dimensions: their reported properties, and the memory that they allocate."""

from __future__ import annotations

import math
import struct

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import HostMemDesc
from tests.conformance.models import open_relu
from tests.conformance.rig import Rig, ok

BYTES = 1 << 38


TOLD: dict[str, dict[str, tuple[int, ...]]] = {
    "": {
        "?": (2**31 - 1,),
        "?,?,?,?": (512, 512, 512, 512),
        "?,3,..64,?": (18918, 3, 64, 18919),
        "2..,5": (2**31 - 1, 5),
        "1..8,16": (8, 16),
    },
    'NPU_UNBOUNDED_BYTES="4096"': {"?,?": (32, 32), "5000..,?": (5000, 1), "9,?": (9, 113)},
}


@pytest.mark.parametrize("config", TOLD)
def test_dimensions_without_a_bound_are_reported_as_large_as_memory_may_be(rig: Rig, config: str) -> None:
    graph = rig.graph(open_relu(*TOLD[config], config=config))
    for index, dims in enumerate(TOLD[config].values()):
        found = rig.api.ze_graph_get_argument_properties3(graph, index).get()
        assert found.dims[: found.dims_count] == dims


def test_memory_for_an_argument_without_a_largest_shape_counts_by_what_is_used(rig: Rig) -> None:
    graph, api, before = rig.graph(open_relu("?,?,?,?")), rig.api, rig.memory_in_use()
    large = [api.ze_mem_alloc_host(rig.context, HostMemDesc(), BYTES).get() for _ in range(2)]
    assert rig.memory_in_use() == before
    shapes = [rig.host(16), rig.host(16)]
    rig.bind(graph, large[0], shapes[0], large[1], shapes[1])
    commands = rig.command_list()
    ok(api.ze_command_list_append_graph_execute(commands, graph))
    rig.close(commands)
    for shape in ((1, 2, 3, 4), (600, 1, 1, 700)):
        count = math.prod(shape)
        api.write(shapes[0], struct.pack("4i", *reversed(shape)))
        api.write(large[0], struct.pack("2f", -1, 2) * (count // 2))
        rig.run(commands)
        assert struct.unpack("4i", api.read(shapes[1], 16)) == tuple(reversed(shape))
        assert api.read(large[1], count * 4) == struct.pack("2f", 0, 2) * (count // 2)
    assert 2 * 600 * 700 * 4 <= rig.memory_in_use() - before < 4 * 600 * 700 * 4
    ok(api.ze_command_list_destroy(commands))
    ok(api.ze_graph_destroy(graph))
    for pointer in large:
        ok(api.ze_mem_free(rig.context, pointer))
    assert rig.memory_in_use() - before < 600 * 700 * 4


def test_memory_of_any_other_size_has_to_be_there(rig: Rig) -> None:
    rig.graph(open_relu("?,?,?,?"))
    refused = rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(), BYTES - 8192)
    assert refused.result == ZeResult.ERROR_OUT_OF_DEVICE_MEMORY
    elsewhere = rig.api.ze_mem_alloc_host(rig.new_context(), HostMemDesc(), BYTES)
    assert elsewhere.result == ZeResult.ERROR_OUT_OF_DEVICE_MEMORY
