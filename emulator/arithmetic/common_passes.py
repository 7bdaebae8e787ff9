"""OpenVINO's common passes (MOC), which the real compiler runs on every model before it imports it.

A LayerNorm in steps becomes one MVN, factors in sequence become one, and so on: the device rounds what is
left. The compiler omits some of these passes (`npu_compiler`, `IE.cpp`, addCommonOptimizationsPasses). Python
cannot omit one, so the edges that it would match are fenced meanwhile. Then the compiler splits attention and
GroupNormalization, and so does this.
"""

from __future__ import annotations

from typing import Final

import openvino as ov
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


def run(model: ov.Model, kept: frozenset[str] = frozenset()) -> None:
    """Run the passes in place. `kept` are types that stay in f32. Needs the extension (`library`)."""
    fences = [fence for each in (model, *all_bodies(model)) for fence in _fences(each)]
    apply_moc_transformations(model, True)
    for fence in fences:
        for port in fence.output(0).get_target_inputs():
            port.replace_source_output(fence.input_value(0))
    for each in (model, *all_bodies(model)):
        decompositions.split(each, kept)


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
