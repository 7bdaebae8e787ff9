"""Build flags applied to the arguments of a model: precisions and layouts by pre-processing.

The model keeps computing as it did: a conversion or a transposition is put between its input (or output)
and the memory of the client. Nothing is added where the model has already what the flags ask for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openvino as ov
from openvino.preprocess import PrePostProcessor

from softnpu.emulator.compiler.build_flags import DEFAULT_LAYOUTS, LAYOUTS, PRECISIONS, BuildFlags
from softnpu.emulator.compiler.error_info import openvino_errors
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

BY_INDEX = "use_indices_for_io_metadata"
_HINTS = ("is_new_api", BY_INDEX)
_HINT_PREFIX = "ws_"
_LISTED = 8


@dataclass(frozen=True)
class Original:
    """An argument before the model is reshaped: see `node_name` and `model_shape` of `ArgumentMeta`."""

    name: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class _Conversion:
    """The conversion requested for one argument; None: none."""

    index: int
    element_type: str | None
    layout: str | None

    @property
    def is_empty(self) -> bool:
        return self.element_type is None and self.layout is None


def remove_compiler_hints(model: ov.Model) -> bool:
    """Remove the hints of programs to the compiler; whether arguments go by index only."""
    by_index = bool(model.has_rt_info(BY_INDEX))
    for key in list(model.rt_info.keys()):
        if key in _HINTS or key.startswith(_HINT_PREFIX):
            del model.rt_info[key]
    return by_index


def originals(model: ov.Model) -> list[Original]:
    """Return all inputs, then all outputs."""
    inputs = [original(port, port.node.friendly_name) for port in model.inputs]
    outputs = [original(port, _shown_name(port.node.input_value(0))) for port in model.outputs]
    return inputs + outputs


def with_shapes(before: Sequence[Original], model: ov.Model) -> list[Original]:
    """Return the same arguments, with the shapes that the model has now."""
    ports = [*model.inputs, *model.outputs]
    return [original(port, entry.name) for port, entry in zip(ports, before, strict=True)]


def apply(model: ov.Model, flags: BuildFlags, by_index: bool, subject: str) -> ov.Model:
    """Return the model with the precisions and layouts of the flags.

    Refuses with `ERROR_INVALID_ARGUMENT` names that no argument has and what cannot be converted.
    """
    names = originals(model)
    count = len(model.inputs)
    ports = [*model.inputs, *model.outputs]
    inputs = _conversions(
        flags.inputs_precisions,
        flags.inputs_layouts,
        ports[:count],
        names[:count],
        by_index,
        f"{subject}, input",
    )
    outputs = _conversions(
        flags.outputs_precisions,
        flags.outputs_layouts,
        ports[count:],
        names[count:],
        by_index,
        f"{subject}, output",
    )
    if not inputs and not outputs:
        return model
    expected = "precisions and layouts that the arguments can be converted to"
    with openvino_errors(ZeResult.ERROR_INVALID_ARGUMENT, f"{subject}, build flags", expected):
        processor = PrePostProcessor(model)
        for conversion in inputs:
            _apply_to(processor.input(conversion.index), model.inputs[conversion.index], conversion)
        for conversion in outputs:
            _apply_to(processor.output(conversion.index), model.outputs[conversion.index], conversion)
        return processor.build()


def find_argument(name: str, ports: Sequence[Any], names: Sequence[Original], by_index: bool) -> int | None:
    """Return the argument that flags or options call `name`; None if there is none."""
    if not by_index:
        for index, (port, original) in enumerate(zip(ports, names, strict=True)):
            if name in port.names or name in {original.name, port.node.friendly_name}:
                return index
        shown = (port.node.input_values() for port in ports)
        for index, sources in enumerate(shown):
            if any(source.get_node().friendly_name == name for source in sources):
                return index
    if name.isascii() and name.isdecimal() and len(name) < 10 and int(name) < len(ports):
        return int(name)
    return None


def original(port: Any, name: str) -> Original:
    """Record an argument's current state."""
    partial = port.partial_shape
    shape = None
    if partial.rank.is_static:
        shape = tuple(dim.get_length() if dim.is_static else -1 for dim in partial)
    return Original(name, shape)


def _shown_name(value: Any) -> str:
    """The name of the operation that an output shows, with the number of its result if it has several."""
    node = value.get_node()
    name: str = node.friendly_name
    return name + (f".{value.get_index()}" if node.get_output_size() != 1 else "")


def _conversions(
    precisions: Mapping[str, str],
    layouts: Mapping[str, str],
    ports: Sequence[Any],
    names: Sequence[Original],
    by_index: bool,
    object_name: str,
) -> list[_Conversion]:
    types: dict[int, str] = {}
    orders: dict[int, str] = {}
    for name, word in precisions.items():
        types[_index_of(name, ports, names, by_index, object_name)] = PRECISIONS[word]
    for name, word in layouts.items():
        orders[_index_of(name, ports, names, by_index, object_name)] = word
    conversions = []
    for index, port in enumerate(ports):
        kind = types.get(index)
        if kind in {"dynamic", port.get_element_type().get_type_name()}:
            kind = None
        order = orders.get(index)
        name = names[index].name
        conversion = _Conversion(
            index, kind, None if order is None else _order(order, port, f"{object_name} '{name}'")
        )
        if not conversion.is_empty:
            conversions.append(conversion)
    return conversions


def _index_of(
    name: str, ports: Sequence[Any], names: Sequence[Original], by_index: bool, object_name: str
) -> int:
    index = find_argument(name, ports, names, by_index)
    if index is None:
        listed = " ".join(
            f"{number}" if by_index else f"'{original.name}'"
            for number, original in enumerate(names[:_LISTED])
        )
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        raise _bad(
            f"{object_name} '{name}'",
            found="the model has none of this name",
            expected=f"one of {listed}{more}",
        )
    return index


def _order(word: str, port: Any, object_name: str) -> str | None:
    """Return the dimensions that a layout asks for, None if they are those that the model has."""
    rank = port.partial_shape.rank
    if rank.is_dynamic:
        return None
    length = rank.get_length()
    layout_rank, dimensions = LAYOUTS[word]
    if layout_rank in {-1, 0} and length in {layout_rank, length if layout_rank == -1 else 0}:
        return None
    if layout_rank != length:
        raise _bad(
            object_name,
            found=f"layout {word} for {length} dimensions",
            expected=f"a layout of {length} dimensions",
        )
    default = DEFAULT_LAYOUTS[length]
    return None if word == default or sorted(dimensions) != sorted(default) else dimensions


def _apply_to(info: Any, port: Any, conversion: _Conversion) -> None:
    if conversion.element_type is not None:
        info.tensor().set_element_type(getattr(ov.Type, conversion.element_type))
    if conversion.layout is not None:
        info.tensor().set_layout(ov.Layout(conversion.layout))
        if port.node.layout.empty:
            info.model().set_layout(ov.Layout(DEFAULT_LAYOUTS[len(conversion.layout)]))


def _bad(object_name: str, *, found: str, expected: str) -> Refused:
    return refuse(ZeResult.ERROR_INVALID_ARGUMENT, object_name, found=found, expected=expected)
