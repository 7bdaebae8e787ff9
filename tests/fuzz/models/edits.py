"""What shrinking can do to a case. An edit names things by their place: it can be done again anywhere."""

from __future__ import annotations

from typing import Any

import openvino as ov
from openvino import opset13

from tests.fuzz.dice import Dice
from tests.fuzz.models.values import SMALL, name_of, tensor

Edit = tuple[str, int, int]
"""What is done, and two numbers: which output, node, input or step."""
Steps = list[list[ov.Tensor]]
_FIXED = ("Parameter", "Constant", "Result", "Assign", "ReadValue")


class CannotEdit(Exception):
    """The edit does not apply to this model."""


def apply(edit: Edit, model: ov.Model, steps: Steps, dice: Dice) -> tuple[ov.Model, Steps]:
    """The changed model and its inputs. Raises `CannotEdit`."""
    kind, first, second = edit
    try:
        model = model.clone()
        return _EDITS[kind](model, steps, first, second, dice)
    except (RuntimeError, IndexError, ValueError) as error:
        raise CannotEdit(f"{edit}: {error}") from error


def candidates(model: ov.Model, steps: Steps) -> list[Edit]:
    """Everything that may be tried next, what takes most away first."""
    results = len(model.get_results())
    found: list[Edit] = []
    if results > 1:
        found += [("only output", index, 0) for index in range(results)]
        found += [("drop output", index, 0) for index in range(results)]
    for index, result in enumerate(model.get_results()):
        last = result.input_value(0).get_node()
        found += [("end before", index, place) for place in range(last.get_input_size())]
    if len(steps) > 1:
        found += [("only step", index, 0) for index in range(len(steps))]
        found += [("drop step", index, 0) for index in range(len(steps))]
    found += [("drop sink", index, 0) for index in range(len(model.get_sinks()))]
    nodes = model.get_ordered_ops()
    for index in reversed(range(len(nodes))):
        node = nodes[index]
        if node.get_type_name() in _FIXED and node.get_type_name() != "ReadValue":
            continue
        for place, port in enumerate(node.input_values()):
            if (
                node.get_output_size() == 1
                and port.element_type == node.output(0).element_type
                and port.partial_shape == node.output(0).partial_shape
            ):
                found.append(("bypass", index, place))
        found.append(("to input", index, 0))
        found.append(("to constant", index, 0))
    found += [("input to constant", index, 0) for index in range(len(model.get_parameters()))]
    found += [("make static", 0, 0), ("plain names", 0, 0), ("no layouts", 0, 0)]
    for index, port in enumerate(model.inputs):
        found += [("shorten", index, axis) for axis in range(len(port.partial_shape))]
        found.append(("zeros", index, 0))
    return found


def _rebuilt(model: ov.Model, results: list[Any], sinks: list[Any], steps: Steps) -> tuple[ov.Model, Steps]:
    """A model of what is left; inputs that nothing reads go, with their tensors."""
    needed: list[Any] = []
    waiting, seen = [*results, *sinks], set()
    while waiting:
        node = waiting.pop()
        if node.get_instance_id() not in seen:
            seen.add(node.get_instance_id())
            waiting += [port.get_node() for port in node.input_values()]
    parameters = model.get_parameters()
    needed = [index for index, one in enumerate(parameters) if one.get_instance_id() in seen]
    changed = ov.Model(results, sinks, [parameters[index] for index in needed], model.get_friendly_name())
    return changed, [[step[index] for index in needed] for step in steps]


def _whole(model: ov.Model, steps: Steps) -> tuple[ov.Model, Steps]:
    return _rebuilt(model, model.get_results(), model.get_sinks(), steps)


def _only_output(model: ov.Model, steps: Steps, index: int, _: int, __: Dice) -> tuple[ov.Model, Steps]:
    return _rebuilt(model, [model.get_results()[index]], model.get_sinks(), steps)


def _drop_output(model: ov.Model, steps: Steps, index: int, _: int, __: Dice) -> tuple[ov.Model, Steps]:
    left = [one for place, one in enumerate(model.get_results()) if place != index]
    if not left:
        raise CannotEdit("the last output")
    return _rebuilt(model, left, model.get_sinks(), steps)


def _end_before(model: ov.Model, steps: Steps, index: int, place: int, _: Dice) -> tuple[ov.Model, Steps]:
    """An output shows what the operation that computed it has read."""
    result = model.get_results()[index]
    source = result.input_value(0).get_node().input_value(place)
    if name_of(source.element_type) in SMALL or source.get_node().get_type_name() == "Constant":
        raise CannotEdit("nothing to show")
    result.input(0).replace_source_output(source)
    return _whole(model, steps)


def _only_step(model: ov.Model, steps: Steps, index: int, _: int, __: Dice) -> tuple[ov.Model, Steps]:
    return model, [steps[index]]


def _drop_step(model: ov.Model, steps: Steps, index: int, _: int, __: Dice) -> tuple[ov.Model, Steps]:
    return model, [step for place, step in enumerate(steps) if place != index]


def _drop_sink(model: ov.Model, steps: Steps, index: int, _: int, __: Dice) -> tuple[ov.Model, Steps]:
    left = [one for place, one in enumerate(model.get_sinks()) if place != index]
    return _rebuilt(model, model.get_results(), left, steps)


def _bypass(model: ov.Model, steps: Steps, index: int, place: int, _: Dice) -> tuple[ov.Model, Steps]:
    node = model.get_ordered_ops()[index]
    source = node.input_values()[place]
    for reader in list(node.output(0).get_target_inputs()):
        reader.replace_source_output(source)
    return _whole(model, steps)


def _to_input(model: ov.Model, steps: Steps, index: int, _: int, dice: Dice) -> tuple[ov.Model, Steps]:
    added = []
    for output in model.get_ordered_ops()[index].outputs():
        readers = list(output.get_target_inputs())
        kind = name_of(output.element_type)
        if not readers:
            continue
        if output.partial_shape.is_dynamic or kind in SMALL:
            raise CannotEdit("no shape, or no type for an input")
        made = opset13.parameter(list(output.shape), output.element_type)
        made.set_friendly_name(f"cut_{index}_{output.get_index()}_{len(model.get_parameters())}")
        added.append(made)
        for reader in readers:
            reader.replace_source_output(made.output(0))
        steps = [[*step, tensor(dice, kind, list(output.shape))] for step in steps]
    model.add_parameters(added)
    return _whole(model, steps)


def _to_constant(model: ov.Model, steps: Steps, index: int, _: int, dice: Dice) -> tuple[ov.Model, Steps]:
    for output in model.get_ordered_ops()[index].outputs():
        readers = list(output.get_target_inputs())
        if readers and output.partial_shape.is_dynamic:
            raise CannotEdit("no shape")
        if readers:
            made = ov.op.Constant(tensor(dice, name_of(output.element_type), list(output.shape)))
            made.set_friendly_name(f"fixed_{index}_{output.get_index()}")
            for reader in readers:
                reader.replace_source_output(made.output(0))
    return _whole(model, steps)


def _input_to_constant(model: ov.Model, steps: Steps, index: int, _: int, __: Dice) -> tuple[ov.Model, Steps]:
    port = model.inputs[index]
    made = ov.op.Constant(steps[0][index])
    made.set_friendly_name(f"was_input_{index}")
    for reader in list(port.get_target_inputs()):
        reader.replace_source_output(made.output(0))
    return _whole(model, steps)


def _make_static(model: ov.Model, steps: Steps, _: int, __: int, ___: Dice) -> tuple[ov.Model, Steps]:
    if all(port.partial_shape.is_static for port in model.inputs):
        raise CannotEdit("it is static")
    model.reshape({index: ov.PartialShape(list(one.shape)) for index, one in enumerate(steps[0])})
    same = [step for step in steps if [one.shape for one in step] == [one.shape for one in steps[0]]]
    return model, same


def _plain_names(model: ov.Model, steps: Steps, _: int, __: int, ___: Dice) -> tuple[ov.Model, Steps]:
    plain = True
    for index, port in enumerate([*model.inputs, *model.outputs]):
        plain &= set(port.get_names()) == {f"p{index}"}
        port.get_tensor().set_names({f"p{index}"})
    if plain:
        raise CannotEdit("they are plain")
    for index, node in enumerate(model.get_ordered_ops()):
        node.set_friendly_name(f"{node.get_type_name()}_{index}")
    return model, steps


def _no_layouts(model: ov.Model, steps: Steps, _: int, __: int, ___: Dice) -> tuple[ov.Model, Steps]:
    if all(one.layout.empty for one in model.get_parameters()):
        raise CannotEdit("there are none")
    for parameter in model.get_parameters():
        parameter.set_layout(ov.Layout())
    return model, steps


def _shorten(model: ov.Model, steps: Steps, index: int, axis: int, dice: Dice) -> tuple[ov.Model, Steps]:
    """A dimension becomes 1 or half of what it was, of all inputs that have the same length."""
    if model.inputs[index].partial_shape.is_dynamic:
        raise CannotEdit("it is open")
    size = list(model.inputs[index].shape)[axis]
    if size < 2:
        raise CannotEdit("it is short")
    shapes = {
        place: [1 if one == size else one for one in port.shape] for place, port in enumerate(model.inputs)
    }
    model.reshape({place: ov.PartialShape(shape) for place, shape in shapes.items()})
    changed = [
        [
            one
            if list(one.shape) == shapes[place]
            else tensor(dice, name_of(one.element_type), shapes[place])
            for place, one in enumerate(step)
        ]
        for step in steps
    ]
    return model, changed


def _zeros(model: ov.Model, steps: Steps, index: int, _: int, dice: Dice) -> tuple[ov.Model, Steps]:
    del dice
    changed = []
    different = False
    for step in steps:
        plain = ov.Tensor(step[index].element_type, step[index].shape)
        if plain.size:
            data = plain.data
            data.reshape(-1)[:] = 1
            different |= data.tobytes() != step[index].data.tobytes()
        changed.append([plain if place == index else one for place, one in enumerate(step)])
    if not different:
        raise CannotEdit("they are plain")
    return model, changed


_EDITS = {
    "only output": _only_output,
    "drop output": _drop_output,
    "end before": _end_before,
    "only step": _only_step,
    "drop step": _drop_step,
    "drop sink": _drop_sink,
    "bypass": _bypass,
    "to input": _to_input,
    "to constant": _to_constant,
    "input to constant": _input_to_constant,
    "make static": _make_static,
    "plain names": _plain_names,
    "no layouts": _no_layouts,
    "shorten": _shorten,
    "zeros": _zeros,
}
