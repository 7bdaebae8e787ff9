"""Inputs that are outputs as well: the device computes from what the client wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from softnpu.driver import Context, GraphSource
from tests.support.work import LONG


def test_an_output_that_is_an_input_is_a_copy_of_it(context: Context, private_dir: Path) -> None:
    x = ops.parameter([4], ov.Type.f32, name="x")
    more = ops.add(x, ops.constant(np.float32(1)))
    ov.serialize(ov.Model([more, x, x], [x], "passing"), private_dir / "passing.xml")
    with GraphSource.from_ir(private_dir / "passing.xml") as source:
        graph = context.create_graph(source)
    graph.initialize()
    places = [context.alloc_host(argument.byte_size) for argument in graph.meta.arguments]
    views = [place.view(np.float32) for place in places]
    for index, place in enumerate(places):
        graph.set_argument_value(index, place)
    commands, queue = context.create_command_list(), context.create_command_queue()
    commands.append_graph_execute(graph)
    commands.close()
    fence = queue.create_fence()
    for value in (1, 5):
        views[0][:] = value
        queue.execute_command_lists([commands], fence)
        assert fence.host_synchronize(LONG)
        assert [view.tolist() for view in views] == [[value] * 4, [value + 1] * 4, [value] * 4, [value] * 4]
