"""Divisors that f16 rounds to 0: the real compiler clamps them to its smallest and largest numbers.

By `npu_compiler`, `convert_precision_to_fp.cpp`, insertEpsilonClamp: a divisor, or what it is the root of, if
it is computed in f16 from data and read once. A division that a Select replaces by zeros is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import openvino as ov
import openvino.opset13 as ops

from softnpu.emulator.arithmetic import rounding
from softnpu.emulator.arithmetic.groups import Name, Origin

SMALLEST: Final = 2.0**-24
LARGEST: Final = 65504.0


def to_clamp(
    operations: Iterable[ov.Node], origin: Mapping[Name, Origin], in_f32: set[Name]
) -> list[ov.Input]:
    """Return the inputs whose values are clamped. The model has no roundings yet."""
    found = []
    for operation in operations:
        port = _divisor(operation)
        if port is None or origin[operation.get_name()] is not Origin.DATA or _is_screened(operation):
            continue
        producer = port.get_source_output().get_node()
        if producer.get_type_name() == "Sqrt":
            port = producer.input(0)
            producer = port.get_source_output().get_node()
        name = producer.get_name()
        if (
            producer.get_input_size()
            and origin[name] is Origin.DATA
            and name not in in_f32
            and producer.input_value(0).get_node().get_type_name() != "Constant"
            and sum(len(each.get_target_inputs()) for each in producer.outputs()) == 1
        ):
            found.append(port)
    return found


def clamp(port: ov.Input) -> None:
    """Clamp the values that an input reads, behind their rounding if there is one."""
    value = port.get_source_output()
    node = value.get_node()
    layer = node.input_value(0).get_node() if node.get_type_name() == rounding.OPERATION else node
    clamped = ops.clamp(value, SMALLEST, LARGEST)
    clamped.set_friendly_name(f"{layer.friendly_name}/epsilon")
    port.replace_source_output(clamped.output(0))


def _divisor(operation: ov.Node) -> ov.Input | None:
    kind = operation.get_type_name()
    if kind == "Divide" and operation.get_output_element_type(0).is_real():
        return operation.input(1)
    if kind == "Power":
        exponent = operation.input_value(1).get_node()
        if exponent.get_type_name() == "Constant" and bool((exponent.data < 0).all()):
            return operation.input(0)
    return None


def _is_screened(operation: ov.Node) -> bool:
    readers = list(operation.output(0).get_target_inputs())
    if len(readers) != 1 or readers[0].get_node().get_type_name() != "Select" or not readers[0].get_index():
        return False
    other = readers[0].get_node().input_value(3 - readers[0].get_index()).get_node()
    return other.get_type_name() == "Constant" and not other.data.any()
