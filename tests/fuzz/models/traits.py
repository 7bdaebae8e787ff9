"""What is special about a model, in words that the list of what is known uses."""

from __future__ import annotations

from typing import Any

from tests.fuzz.models.case import Case
from tests.fuzz.models.values import name_of

_WIDE = ("i64", "u64", "f64")


def traits_of(case: Case) -> set[str]:
    """The traits of a case."""
    found: set[str] = set()
    nodes = case.model.get_ordered_ops()
    for result in case.model.get_results():
        source = result.input_value(0).get_node()
        if source.get_type_name() == "Parameter":
            found.add("an output is an input")
            if name_of(result.get_element_type()) in _WIDE:
                found.add("an output is an input of 64 bits")
        if source.get_type_name() == "Constant":
            found.add("an output is a constant")
    if case.stateful:
        found.add("states")
    if case.dynamic:
        found.add("open shapes")
    ports = [*case.model.inputs, *case.model.outputs]
    if any(dimension.get_max_length() < 0 for port in ports for dimension in port.partial_shape):
        found.add("open without a bound")
    for node in nodes:
        found |= _of_node(node)
    if any(len(port.partial_shape) > 5 for port in ports):
        found.add("more than 5 dimensions")
    return found


def _of_node(node: Any) -> set[str]:
    kind = node.get_type_name()
    found = set()
    if kind == "Constant" and 0 in node.get_output_shape(0):
        found.add("an empty constant")
    if kind == "Convert" and node.input_value(0).get_node().get_type_name() == "ReadValue":
        found.add("a state that is converted")
    old = kind == "ReadValue" and node.get_type_info().version_id == "opset3"
    if old and name_of(node.get_element_type()) in ("f16", "bf16", "f64"):
        found.add("a state of opset 3 that the CPU keeps in f32")
    if kind in ("If", "Loop", "TensorIterator"):
        found.add("control flow")
    return found
