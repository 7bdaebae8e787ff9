"""The XML of a model and its constants: which layer is which constant is known, not guessed."""

from __future__ import annotations

from html import unescape

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.emulator.blob.weights import const_layers
from softnpu.emulator.compiler import constants
from softnpu.emulator.compiler.constants import serialize_ir
from softnpu.emulator.interface.result import Refused, ZeResult

NAMES = ("plain", 'we"ird <&> name', "dup", "dup", "tab\tand\nline", "größe", "in a branch", "in the other")


def _model() -> tuple[ov.Model, dict[bytes, str]]:
    """Constants of one size and of many names, also in branches; the name of each by its content."""
    values = [np.full(4, number, np.float32) for number in range(len(NAMES))]
    nodes = [ops.constant(value, name=name) for name, value in zip(NAMES, values, strict=True)]
    x = ops.parameter([4], ov.Type.f32, name="x")
    flag = ops.parameter([], ov.Type.boolean, name="flag")
    total = x
    for node in nodes[:-2]:
        total = ops.add(ops.relu(total), node)
    choice = ops.if_op(flag)
    for node, body in zip(nodes[-2:], ("then", "else"), strict=True):
        inner = ops.parameter([4], ov.Type.f32)
        branch = ov.Model([ops.result(ops.multiply(inner, node))], [inner], body)
        getattr(choice, f"set_{body}_body")(branch)
    choice.set_input(total.output(0), *(choice.get_function(at).get_parameters()[0] for at in range(2)))
    results = [choice.get_function(at).get_results()[0] for at in range(2)]
    out = choice.set_output(*results)
    named = {value.tobytes(): name for name, value in zip(NAMES, values, strict=True)}
    return ov.Model([ops.result(out)], [x, flag], "many"), named


def test_each_layer_is_the_constant_of_its_name() -> None:
    model, named = _model()
    xml, nodes = serialize_ir(model, "model 'many'")
    layers = const_layers(xml)
    assert [unescape(layer.name.decode()) for layer in layers] == [node.name for node in nodes]
    assert [named[bytes(node.view())] for node in nodes] == [node.name for node in nodes]
    assert sorted(node.name for node in nodes) == sorted(NAMES)


def test_the_model_keeps_its_names() -> None:
    model, _ = _model()
    before = [operation.friendly_name for operation in model.get_ordered_ops()]
    serialize_ir(model, "model 'many'")
    assert [operation.friendly_name for operation in model.get_ordered_ops()] == before
    inside = [body.friendly_name for body in model.get_ordered_ops()[-2].get_function(0).get_ordered_ops()]
    assert "in a branch" in inside


def test_constants_that_are_not_found_in_the_xml_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "_BODIES", {})
    model, _ = _model()
    with pytest.raises(Refused, match="6 constants in the model, 8 in its XML, 6 of both") as caught:
        serialize_ir(model, "model 'many'")
    assert caught.value.info.result == ZeResult.ERROR_MODULE_BUILD_FAILURE


def test_constants_without_elements_have_no_size() -> None:
    x = ops.parameter([1], ov.Type.f32, name="x")
    scalar = ops.reshape(x, ops.constant(np.zeros(0, np.int64)), False)
    xml, (node,) = serialize_ir(ov.Model([ops.result(scalar)], [x], "empty"), "model 'empty'")
    assert [layer.size for layer in const_layers(xml)] == [node.length] == [0]
