"""The neutral graph of an OpenVINO model: types, shapes, attributes, edges, folded operations."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from softnpu.emulator.prediction.graph import DYNAMIC, Source
from softnpu.emulator.prediction.groups import fuse
from softnpu.emulator.prediction.reader import read_fused_graph, read_graph


def _model(shape: ov.PartialShape) -> ov.Model:
    image = ops.parameter(shape, np.float32, name="image")
    weights = ops.constant(np.ones((32, 3, 3, 3), np.float16))
    value = ops.convolution(image, ops.convert(weights, "f32"), [2, 2], [1, 1], [1, 1], [1, 1], name="first")
    value = ops.relu(ops.add(value, ops.constant(np.ones((1, 32, 1, 1), np.float32))))
    left, right = ops.split(value, ops.constant(1), 2).outputs()
    return ov.Model([ops.result(ops.add(left, right)), ops.result(right)], [image], "small")


def test_operations_keep_their_types_attributes_and_edges() -> None:
    graph = read_graph(_model(ov.PartialShape([1, 3, 32, 32])))
    (first,) = graph.of_type("Convolution")
    (split,) = graph.of_type("Split")
    (both,) = (each for each in graph.of_type("Add") if each.inputs[0].operation == split.index)
    assert first.name == "first"
    assert first.integers("strides") == (2, 2)
    assert first.outputs[0].shape == (1, 32, 16, 16)
    assert first.outputs[0].size == 32 * 16 * 16 * 4
    assert both.inputs == (Source(split.index, 0), Source(split.index, 1))
    assert {each.type for each in graph.consumers(split)} == {"Add", "Result"}
    assert graph.inputs[0].outputs[0].names == ("image",) or graph.inputs[0].name == "image"
    assert sum(each.outputs[0].size for each in graph.of_type("Constant")) == 32 * 3 * 9 * 2 + 32 * 4 + 8
    assert all(source.operation < each.index for each in graph for source in each.inputs)


def test_constants_and_operations_on_them_are_folded() -> None:
    graph = read_graph(_model(ov.PartialShape([1, 3, 32, 32])))
    folded = {graph.operations[index].type for index in graph.constant_like}
    assert folded == {"Constant", "Convert"}
    (axis,) = (each for each in graph.of_type("Constant") if each.outputs[0].shape == ())
    assert axis.value == (1.0,)
    assert [group.kernel for group in fuse(graph)] == ["Convolution", "Eltwise"]


def test_operations_are_fused_as_before_the_compiler_without_changing_the_model() -> None:
    x = ops.parameter([1, 8], np.float32)
    inner = ops.minimum(ops.maximum(ops.add(x, np.float32(3)), np.float32(0)), np.float32(6))
    model = ov.Model([ops.result(ops.multiply(ops.multiply(x, inner), np.float32(1 / 6)))], [x])
    assert [each.type for each in read_fused_graph(model)] == ["Parameter", "HSwish", "Result"]
    assert "Maximum" in [each.type for each in read_graph(model)]


def test_open_dimensions_have_their_bounds() -> None:
    graph = read_graph(_model(ov.PartialShape([ov.Dimension(1, 4), 3, -1, 32])))
    image = graph.inputs[0].outputs[0]
    assert image.shape == (DYNAMIC, 3, DYNAMIC, 32)
    assert image.upper == (4, 3, DYNAMIC, 32)
    assert not image.static
    assert image.elements == 4 * 3 * 1 * 32
    assert graph.dynamic[0].type == "Parameter"
