"""Edits that shrink a case. An edit refers to things by position, so it can be repeated anywhere."""

from __future__ import annotations

from typing import Any

import openvino as ov
from openvino import opset13

from tests.fuzz.dice import Dice
from tests.fuzz.models.values import SMALL, name_of, tensor

Edit = tuple[str, int, int]
"""The edit, and two numbers: which output, node, input or step."""
Steps = list[list[ov.Tensor]]
Made = tuple[ov.Model, Steps]
_FIXED = ("Parameter", "Constant", "Result", "Assign", "ReadValue")


class CannotEdit(Exception):
    """The edit does not apply to this model."""


def apply(edit: Edit, model: ov.Model, steps: Steps, dice: Dice) -> Made:
    """Return the changed model and its inputs. Raise `CannotEdit`."""
    try:
        made: Made = getattr(_Edits(model.clone(), steps, edit, dice), edit[0].replace(" ", "_"))()
    except (RuntimeError, IndexError, ValueError) as error:
        raise CannotEdit(f"{edit}: {error}") from error
    return made


def candidates(model: ov.Model, steps: Steps) -> list[Edit]:
    """Return all edits to try next, the largest reduction first."""
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


class _Edits:
    """One edit of a clone: `first` and `second` as in the edit."""

    def __init__(self, model: ov.Model, steps: Steps, edit: Edit, dice: Dice) -> None:
        self._model = model
        self._steps = steps
        _, self._first, self._second = edit
        self._dice = dice

    # ------------------------------------------------------------ rebuilding

    def _rebuilt(self, results: list[Any] | None = None, sinks: list[Any] | None = None) -> Made:
        """Rebuild a model from these ends, or all; unread inputs go, with their tensors."""
        model = self._model
        results = model.get_results() if results is None else results
        sinks = model.get_sinks() if sinks is None else sinks
        waiting, seen = [*results, *sinks], set()
        while waiting:
            node = waiting.pop()
            if node.get_instance_id() not in seen:
                seen.add(node.get_instance_id())
                waiting += [port.get_node() for port in node.input_values()]
        parameters = model.get_parameters()
        needed = [index for index, one in enumerate(parameters) if one.get_instance_id() in seen]
        changed = ov.Model(results, sinks, [parameters[index] for index in needed], model.get_friendly_name())
        return changed, [[step[index] for index in needed] for step in self._steps]

    def _without(self, values: list[Any]) -> list[Any]:
        return [one for place, one in enumerate(values) if place != self._first]

    def _node(self) -> Any:
        return self._model.get_ordered_ops()[self._first]

    # ------------------------------------------------------------ outputs, steps, states

    def only_output(self) -> Made:
        return self._rebuilt([self._model.get_results()[self._first]])

    def drop_output(self) -> Made:
        left = self._without(self._model.get_results())
        if not left:
            raise CannotEdit("the last output")
        return self._rebuilt(left)

    def end_before(self) -> Made:
        """Make an output show the inputs of the operation that computed it."""
        result = self._model.get_results()[self._first]
        source = result.input_value(0).get_node().input_value(self._second)
        if name_of(source.element_type) in SMALL or source.get_node().get_type_name() == "Constant":
            raise CannotEdit("nothing to show")
        result.input(0).replace_source_output(source)
        return self._rebuilt()

    def only_step(self) -> Made:
        return self._model, [self._steps[self._first]]

    def drop_step(self) -> Made:
        return self._model, self._without(self._steps)

    def drop_sink(self) -> Made:
        return self._rebuilt(sinks=self._without(self._model.get_sinks()))

    # ------------------------------------------------------------ operations

    def bypass(self) -> Made:
        source = self._node().input_values()[self._second]
        _read_instead(self._node().output(0), source)
        return self._rebuilt()

    def to_input(self) -> Made:
        added = []
        for output in self._node().outputs():
            kind = name_of(output.element_type)
            if not output.get_target_inputs():
                continue
            if output.partial_shape.is_dynamic or kind in SMALL:
                raise CannotEdit("no shape, or no type for an input")
            made = opset13.parameter(list(output.shape), output.element_type)
            count = len(self._model.get_parameters())
            made.set_friendly_name(f"cut_{self._first}_{output.get_index()}_{count}")
            added.append(made)
            _read_instead(output, made.output(0))
            self._steps = [[*step, tensor(self._dice, kind, list(output.shape))] for step in self._steps]
        self._model.add_parameters(added)
        return self._rebuilt()

    def to_constant(self) -> Made:
        for output in self._node().outputs():
            if output.get_target_inputs() and output.partial_shape.is_dynamic:
                raise CannotEdit("no shape")
            if output.get_target_inputs():
                made = ov.op.Constant(tensor(self._dice, name_of(output.element_type), list(output.shape)))
                made.set_friendly_name(f"fixed_{self._first}_{output.get_index()}")
                _read_instead(output, made.output(0))
        return self._rebuilt()

    # ------------------------------------------------------------ inputs

    def input_to_constant(self) -> Made:
        made = ov.op.Constant(self._steps[0][self._first])
        made.set_friendly_name(f"was_input_{self._first}")
        _read_instead(self._model.inputs[self._first], made.output(0))
        return self._rebuilt()

    def make_static(self) -> Made:
        if all(port.partial_shape.is_static for port in self._model.inputs):
            raise CannotEdit("it is static")
        shapes = [one.shape for one in self._steps[0]]
        self._model.reshape({index: ov.PartialShape(list(shape)) for index, shape in enumerate(shapes)})
        return self._model, [step for step in self._steps if [one.shape for one in step] == shapes]

    def plain_names(self) -> Made:
        plain = True
        for index, port in enumerate([*self._model.inputs, *self._model.outputs]):
            plain &= set(port.get_names()) == {f"p{index}"}
            port.get_tensor().set_names({f"p{index}"})
        if plain:
            raise CannotEdit("they are plain")
        for index, node in enumerate(self._model.get_ordered_ops()):
            node.set_friendly_name(f"{node.get_type_name()}_{index}")
        return self._model, self._steps

    def no_layouts(self) -> Made:
        if all(one.layout.empty for one in self._model.get_parameters()):
            raise CannotEdit("there are none")
        for parameter in self._model.get_parameters():
            parameter.set_layout(ov.Layout())
        return self._model, self._steps

    def shorten(self) -> Made:
        """Set a dimension to 1, in all inputs of the same length."""
        ports = self._model.inputs
        if ports[self._first].partial_shape.is_dynamic:
            raise CannotEdit("it is open")
        size = list(ports[self._first].shape)[self._second]
        if size < 2:
            raise CannotEdit("it is short")
        shapes = [[1 if one == size else one for one in port.shape] for port in ports]
        self._model.reshape({place: ov.PartialShape(shape) for place, shape in enumerate(shapes)})

        def fitting(one: ov.Tensor, shape: list[int]) -> ov.Tensor:
            same = list(one.shape) == shape
            return one if same else tensor(self._dice, name_of(one.element_type), shape)

        return self._model, [list(map(fitting, step, shapes)) for step in self._steps]

    def zeros(self) -> Made:
        """Set an input to 1 everywhere, in every step."""
        changed, different = [], False
        for step in self._steps:
            given = step[self._first]
            plain = ov.Tensor(given.element_type, given.shape)
            if plain.size:
                plain.data.reshape(-1)[:] = 1
                different |= plain.data.tobytes() != given.data.tobytes()
            changed.append([plain if place == self._first else one for place, one in enumerate(step)])
        if not different:
            raise CannotEdit("they are plain")
        return self._model, changed


def _read_instead(output: Any, source: Any) -> None:
    for reader in list(output.get_target_inputs()):
        reader.replace_source_output(source)
