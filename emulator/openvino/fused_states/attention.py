"""Find the attentions that OpenVINO's CPU runtime has fused with variables, and these variables in the model.

The compiled model shows which are fused, the original model along which axes; deviations from the known
pattern (2026.4) are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import openvino as ov

from softnpu.emulator.interface.result import Refused, ZeResult, refuse

Shape = tuple[int, ...]
OPEN = -1
"""Stands for a dynamic dimension."""

_ATTENTION = "ScaledDotProductAttention"
_CONVERSIONS = {"Convert", "Reorder"}
_BEFORE_ATTENTION = {"Convert", "Reshape", "Unsqueeze", "Multiply", "Broadcast"}
_FUSED_INPUTS = 6  # query, key, value, beams and two variables; more with a mask and a scale


class Cache(NamedTuple):
    """A variable of keys or values, described by its neighbours in the model whose shapes are inferred."""

    variable: str
    begin: Any  # the output with the initial value; None for zeros
    chosen: Any  # the result of Gather
    new: Any  # the appended part
    joined: Any  # both
    length: int  # the axis that grows
    batch: int
    declared: Shape  # -1 for dynamic dimensions


class Pair(NamedTuple):
    """Keys and values of one attention. `one_shape`: not even the last dimension may differ."""

    attention: str
    keys: Cache
    values: Cache
    one_shape: bool


def pairs(model: ov.Model, attentions: Sequence[tuple[str, str, str]], subject: str) -> list[Pair]:
    """Return the variables of these attentions; refuse unknown ones with `ERROR_UNSUPPORTED_FEATURE`."""
    readers: dict[str, list[Any]] = {}
    assigns: dict[str, Any] = {}
    for operation in model.get_ordered_ops():
        if operation.get_type_name() == "ReadValue":
            readers.setdefault(operation.friendly_name, []).append(operation)
        elif operation.get_type_name() == "Assign":
            assigns[operation.get_variable_id()] = operation
    result = []
    for attention, *names in attentions:
        about = f"{subject}, operation '{attention}'"
        keys, values = (_cache(about, readers.get(name, []), assigns) for name in names)
        if (keys.length, keys.batch) != (values.length, values.batch):
            raise _unknown(about, "keys and values along different axes")
        # the last axis holds features, and the values' memory is sized by the keys'
        one_shape = any(_is_transposed(each.joined) or each.declared[-1] == OPEN for each in (keys, values))
        result.append(Pair(attention, keys, values, one_shape))
    return result


def fused(compiled: ov.CompiledModel, subject: str) -> Iterator[tuple[str, str, str]]:
    """Yield the names of fused operations, each with its ReadValues of keys and of values."""
    for operation in compiled.get_runtime_model().get_ordered_ops():
        if _layer(operation) != _ATTENTION:
            continue
        last = []
        if operation.get_input_size() >= _FUSED_INPUTS:
            count = operation.get_input_size()
            last = [_before_conversions(operation.input_value(at)).node for at in (count - 2, count - 1)]
        are_variables = [_layer(node) == "MemoryInput" for node in last]
        if last and all(are_variables):
            yield operation.friendly_name, last[0].friendly_name, last[1].friendly_name
        elif any(are_variables) or _is_assigned(operation):
            raise refuse(
                ZeResult.ERROR_UNSUPPORTED_FEATURE,
                f"{subject}, operation '{operation.friendly_name}'",
                found="fused with variables in a way that is not known",
                expected="two variables, of keys and of values",
            )


def _layer(operation: Any) -> str:
    info = operation.rt_info
    return str(info["layerType"].astype(str)) if "layerType" in info else str(operation.get_type_name())


def _before_conversions(output: Any) -> Any:
    while _layer(output.node) in _CONVERSIONS:
        output = output.node.input_value(0)
    return output


def _is_assigned(operation: Any) -> bool:
    targets = [target for output in operation.outputs() for target in output.get_target_inputs()]
    return any(_layer(target.get_node()) == "MemoryOutput" for target in targets)


def _is_transposed(output: Any) -> bool:
    """Whether there is a Transpose between this output and its attention."""
    nodes = [target.get_node() for target in output.get_target_inputs()]
    return any(
        node.get_type_name() == "Transpose"
        or (node.get_type_name() in _BEFORE_ATTENTION and _is_transposed(node.output(0)))
        for node in nodes
    )


def _cache(about: str, readers: Sequence[Any], assigns: Mapping[str, Any]) -> Cache:
    if len(readers) != 1:
        raise _unknown(about, f"{len(readers)} ReadValue of one name")
    reader = readers[0]
    variable = reader.get_variable_id()
    joined = _before_conversions(assigns[variable].input_value(0)).node
    if joined.get_type_name() != "Concat" or joined.get_input_size() != 2:
        raise _unknown(about, f"a {joined.get_type_name()} before the Assign of '{variable}'")
    chosen = joined.input_value(0)
    gather = _before_conversions(chosen).node
    if gather.get_type_name() != "Gather":
        raise _unknown(about, f"a {gather.get_type_name()} after the ReadValue of '{variable}'")
    past = _before_conversions(gather.input_value(0)).node
    axis = gather.input_value(2).node
    if past.friendly_name != reader.friendly_name or axis.get_type_name() != "Constant":
        raise _unknown(about, f"another Gather than of '{variable}'")
    declared = tuple(dimensions(reader.output(0).partial_shape))
    rank = len(declared)
    begin = reader.input_value(0) if reader.get_input_size() else None
    length = int(joined.get_attributes()["axis"]) % rank
    batch = int(axis.get_data().reshape(-1)[0]) % rank
    return Cache(variable, begin, chosen, joined.input_value(1), joined.output(0), length, batch, declared)


def _unknown(about: str, found: str) -> Refused:
    return refuse(
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        about,
        found=f"fused with its variables, {found}",
        expected="for keys and values ReadValue, Gather, Concat and Assign, as OpenVINO checks no shapes",
    )


def dimensions(shape: Any) -> list[int]:
    """Return the dimensions, `OPEN` for dynamic ones."""
    return [dim.get_length() if dim.is_static else OPEN for dim in shape]
