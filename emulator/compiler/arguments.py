"""What build flags say of the arguments, applied to a model: precisions and layouts by pre-processing.

The model keeps computing as it did: a conversion or a transposition is put between its input (or output)
and the memory of the client. Where the flags ask for what the model has already nothing is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openvino as ov
from openvino.preprocess import PrePostProcessor

from softnpu.emulator.compiler.build_flags import DEFAULT_LAYOUTS, LAYOUTS, PRECISIONS, BuildFlags
from softnpu.emulator.compiler.error_info import openvino_faults
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

BY_INDEX = "use_indices_for_io_metadata"
_OURS = ("is_new_api", BY_INDEX)
_OURS_PREFIX = "ws_"
_LISTED = 8


@dataclass(frozen=True)
class Original:
    """An argument as the IR has it, before shapes and flags: see `ArgumentMeta`."""

    friendly_name: str
    element_type: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class _Wish:
    """What the flags ask of one argument; None: nothing."""

    index: int
    element_type: str | None
    layout: str | None

    @property
    def is_empty(self) -> bool:
        return self.element_type is None and self.layout is None


def take_notes(model: ov.Model) -> bool:
    """Removes what programs write into a model for the compiler; whether arguments go by index only."""
    by_index = bool(model.has_rt_info(BY_INDEX))
    for key in list(model.rt_info.keys()):
        if key in _OURS or key.startswith(_OURS_PREFIX):
            del model.rt_info[key]
    return by_index


def originals(model: ov.Model) -> list[Original]:
    """All inputs, then all outputs."""
    inputs = [original(port, port.node.friendly_name) for port in model.inputs]
    outputs = [original(port, port.node.input_value(0).get_node().friendly_name) for port in model.outputs]
    return inputs + outputs


def apply(model: ov.Model, flags: BuildFlags, by_index: bool, subject: str) -> ov.Model:
    """The model with the precisions and layouts of the flags.

    Refuses with `ERROR_INVALID_ARGUMENT` names that no argument has and what cannot be converted.
    """
    names = originals(model)
    count = len(model.inputs)
    ports = [*model.inputs, *model.outputs]
    inputs = _wishes(flags.inputs_precisions, flags.inputs_layouts, ports[:count], names[:count], by_index,
                     f"{subject}, input")  # fmt: skip
    outputs = _wishes(flags.outputs_precisions, flags.outputs_layouts, ports[count:], names[count:], by_index,
                      f"{subject}, output")  # fmt: skip
    if not inputs and not outputs:
        return model
    expected = "precisions and layouts that the arguments can be converted to"
    with openvino_faults(ZeResult.ERROR_INVALID_ARGUMENT, f"{subject}, build flags", expected):
        processor = PrePostProcessor(model)
        for wish in inputs:
            _ask(processor.input(wish.index), model.inputs[wish.index], wish)
        for wish in outputs:
            _ask(processor.output(wish.index), model.outputs[wish.index], wish)
        return processor.build()


def find(name: str, ports: Sequence[Any], names: Sequence[Original], by_index: bool) -> int | None:
    """The argument that flags or options call `name`; None if there is none."""
    if not by_index:
        for index, (port, original) in enumerate(zip(ports, names, strict=True)):
            if name in port.names or name in {original.friendly_name, port.node.friendly_name}:
                return index
    if name.isascii() and name.isdecimal() and len(name) < 10 and int(name) < len(ports):
        return int(name)
    return None


def original(port: Any, friendly_name: str) -> Original:
    """How an argument is now."""
    partial = port.partial_shape
    shape = None
    if partial.rank.is_static:
        shape = tuple(dim.get_length() if dim.is_static else -1 for dim in partial)
    return Original(friendly_name, port.get_element_type().get_type_name(), shape)


def _wishes(
    precisions: Mapping[str, str],
    layouts: Mapping[str, str],
    ports: Sequence[Any],
    names: Sequence[Original],
    by_index: bool,
    thing: str,
) -> list[_Wish]:
    types: dict[int, str] = {}
    orders: dict[int, str] = {}
    for name, word in precisions.items():
        types[_found(name, ports, names, by_index, thing)] = PRECISIONS[word]
    for name, word in layouts.items():
        orders[_found(name, ports, names, by_index, thing)] = word
    wishes = []
    for index, port in enumerate(ports):
        kind = types.get(index)
        if kind in {"dynamic", port.get_element_type().get_type_name()}:
            kind = None
        order = orders.get(index)
        name = names[index].friendly_name
        wish = _Wish(index, kind, None if order is None else _order(order, port, f"{thing} '{name}'"))
        if not wish.is_empty:
            wishes.append(wish)
    return wishes


def _found(name: str, ports: Sequence[Any], names: Sequence[Original], by_index: bool, thing: str) -> int:
    index = find(name, ports, names, by_index)
    if index is None:
        what = " ".join(
            f"{number}" if by_index else f"'{original.friendly_name}'"
            for number, original in enumerate(names[:_LISTED])
        )
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        raise _bad(f"{thing} '{name}'", "the model has none of this name", f"one of {what}{more}")
    return index


def _order(word: str, port: Any, thing: str) -> str | None:
    """The dimensions that a layout asks for, None if they are those that the model has."""
    rank = port.partial_shape.rank
    if rank.is_dynamic:
        return None
    length = rank.get_length()
    wanted, dimensions = LAYOUTS[word]
    if wanted in {-1, 0} and length in {wanted, length if wanted == -1 else 0}:
        return None
    if wanted != length:
        raise _bad(thing, f"layout {word} for {length} dimensions", f"a layout of {length} dimensions")
    default = DEFAULT_LAYOUTS[length]
    return None if word == default or sorted(dimensions) != sorted(default) else dimensions


def _ask(info: Any, port: Any, wish: _Wish) -> None:
    if wish.element_type is not None:
        info.tensor().set_element_type(getattr(ov.Type, wish.element_type))
    if wish.layout is not None:
        info.tensor().set_layout(ov.Layout(wish.layout))
        if port.node.layout.empty:
            info.model().set_layout(ov.Layout(DEFAULT_LAYOUTS[len(wish.layout)]))


def _bad(thing: str, found: str, expected: str) -> Refused:
    return refuse(ZeResult.ERROR_INVALID_ARGUMENT, thing, found=found, expected=expected)
