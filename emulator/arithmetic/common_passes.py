"""OpenVINO's common passes (MOC), which the real compiler runs on every model before it imports it.

A LayerNorm in steps becomes one MVN, factors in sequence become one, and so on: the device rounds what is
left. The compiler omits some of these passes and keeps f16 weights (`npu_compiler`, `IE.cpp`,
addCommonOptimizationsPasses). Python cannot ask for that, so the edges that an omitted pass would match are
fenced meanwhile, and weights are parameters. Then the compiler splits attention and GroupNormalization, and
so does this.
"""

from __future__ import annotations

import math
from typing import Final

import openvino as ov
import openvino.opset13 as ops
from openvino._pyopenvino._offline_transformations import apply_moc_transformations

from softnpu.emulator.arithmetic import decompositions, groups, rounding
from softnpu.emulator.arithmetic.groups import Origin
from softnpu.emulator.common.model_bodies import all_bodies

_CONVOLUTIONS: Final = frozenset(
    {
        "Convolution", "ConvolutionBackpropData", "GroupConvolution", "GroupConvolutionBackpropData",
    }
)  # fmt: skip
_OMITTED: Final[dict[str, frozenset[str]]] = {
    "Add": frozenset({"FakeQuantize"}),
    "FakeQuantize": frozenset({"Multiply"}),
    "Multiply": frozenset({"FakeQuantize", *_CONVOLUTIONS}),
    "Pad": frozenset({"Convolution", "GroupConvolution"}),
    "Softmax": frozenset({"MatMul"}),  # attention is fused, then split again: its steps keep their names
}
"""Operations with which the compiler does not fuse one before them, by the type of that one."""
_HALF: Final = frozenset({"bf16", "f16"})
_LARGE: Final = 1024
"""Smaller constants are folded: passes match an epsilon or an exponent only then."""


def run(model: ov.Model, kept: frozenset[str] = frozenset()) -> None:
    """Run the passes in place. `kept` are types that stay in f32. Needs the extension (`library`)."""
    fences = [fence for each in (model, *all_bodies(model)) for fence in _fences(each)]
    weights = _half_weights(model)
    apply_moc_transformations(model, True)
    for parameter, convert in weights:
        for port in parameter.output(0).get_target_inputs():
            port.replace_source_output(convert.output(0))
        model.remove_parameter(parameter)
    for fence in fences:
        for port in fence.output(0).get_target_inputs():
            port.replace_source_output(fence.input_value(0))
    for each in (model, *all_bodies(model)):
        decompositions.split(each, kept)


def _half_weights(model: ov.Model) -> list[tuple[ov.Node, ov.Node]]:
    """Replace the large weights in 16 bits by parameters, which no pass folds; return both."""
    found = []
    for convert in model.get_ordered_ops():
        source = convert.input_value(0) if convert.get_type_name() == "Convert" else None
        if (
            source is not None
            and source.get_node().get_type_name() == "Constant"
            and source.get_element_type().get_type_name() in _HALF
            and math.prod(source.get_shape()) >= _LARGE
        ):
            parameter = ops.parameter(source.get_shape(), convert.get_output_element_type(0))
            for port in convert.output(0).get_target_inputs():
                port.replace_source_output(parameter.output(0))
            found.append((parameter, convert))
    model.add_parameters([parameter for parameter, _ in found])
    return found


def _fences(model: ov.Model) -> list[ov.Node]:
    origin = groups.origins(model)
    ports = [
        port
        for operation in model.get_ordered_ops()
        if (readers := _OMITTED.get(operation.get_type_name()))
        and origin[operation.get_name()] is Origin.DATA
        and operation.get_output_element_type(0).get_type_name() in {"f16", "f32"}
        for port in operation.output(0).get_target_inputs()
        if port.get_node().get_type_name() in readers
    ]
    return [_fenced(port) for port in ports]


def _fenced(port: ov.Input) -> ov.Node:
    """Put an operation that no pass knows before an input."""
    value = port.get_source_output()
    fence = rounding.operation(value, True, f"{value.get_node().get_name()}/fence")
    port.replace_source_output(fence)
    return fence.get_node()
