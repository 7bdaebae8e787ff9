"""Open dimensions of a model, and the inputs of its inferences, with lengths that vary together.

An inference uses only lengths for which the model is defined: beyond that, OpenVINO's CPU device reads and
writes out of bounds, and its results mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import openvino as ov

from tests.fuzz.dice import Dice
from tests.fuzz.models.values import name_of, tensor

_MOST = 9
_PLACES = ("Bag", "CTC", "Embedding", "Gather", "OneHot", "ROI", "Scatter", "Segment", "Sequence", "Slice")
"""Parts of types that read or write at computed indices, which must stay in range."""
_RECURRENT = ("AUGRU", "GRU", "LSTM", "RNN")
"""They do not compare inputs with weights: only the model's own length is valid."""

Places = dict[int, set[tuple[int, int]]]
"""For each varying length: its (input, axis) pairs."""


def opened(dice: Dice, model: ov.Model) -> Places:
    """Open dimensions of some models; return each varying length with its (input, axis) pairs."""
    if not model.inputs or not dice.chance(0.3):
        return {}
    places: Places = {}
    batch_only = dice.chance(0.5)
    for index, port in enumerate(model.inputs):
        for axis, size in enumerate(port.shape):
            if not batch_only or axis == 0:
                places.setdefault(size, set()).add((index, axis))
    if not places:
        return {}
    chosen = dice.sample(sorted(places), min(len(places), dice.pick((1, 1, 2))))
    bounded = dice.randrange(3)
    shapes = {}
    for index, port in enumerate(model.inputs):
        dimensions = []
        for axis, size in enumerate(port.shape):
            if not any((index, axis) in places[length] for length in chosen):
                dimensions.append(ov.Dimension(size))
            elif bounded == 0:
                dimensions.append(ov.Dimension(-1))
            else:
                low = 0 if bounded == 2 else min(1, size)
                dimensions.append(ov.Dimension(low, max(_MOST, size)))
        shapes[index] = ov.PartialShape(dimensions)
    before = {index: port.partial_shape for index, port in enumerate(model.inputs)}
    try:
        model.reshape(shapes)
        fixed = _states_are_fixed(model)
    except RuntimeError:  # an operation that needs the length
        fixed = False
    if not fixed:
        with suppress(RuntimeError):  # OpenVINO makes stateful models that fail its validation
            model.reshape(before)
        return {}
    return {size: places[size] for size in chosen}


def make_steps(
    dice: Dice, model: ov.Model, limits: Sequence[tuple[int, int] | None], places: Places
) -> list[list[ov.Tensor]]:
    """Return the inputs of some inferences. `limits` has the range of the numbers of each input."""
    wild = dice.chance(0.2)
    by_place = any(part in node.get_type_name() for node in model.get_ordered_ops() for part in _PLACES)
    recurrent = any(
        node.get_type_name().startswith(_RECURRENT) and node.get_type_name().endswith(("Cell", "Sequence"))
        for node in model.get_ordered_ops()
    )
    steps = []
    for number in range(dice.randint(2, 4) if places or model.get_sinks() else dice.randint(1, 3)):
        lengths = {}
        for size, where in sorted(places.items()):
            chosen = size if number == 0 or dice.chance(0.25) else dice.randint(1, _MOST)
            if number and dice.chance(0.05) and not model.get_sinks():
                chosen = 0  # often out of bounds: refused, and a state would not advance
            if by_place:
                chosen = max(chosen, size)
            if recurrent:
                chosen = size
            lengths.update(dict.fromkeys(where, chosen))
        shapes = _shapes(model, lengths)
        if places and number and not _defined(model, shapes):
            shapes = _shapes(model, {one: size for size, where in places.items() for one in where})
        steps.append(
            [
                tensor(dice, name_of(port.element_type), shape, limit, wild)
                for port, shape, limit in zip(model.inputs, shapes, limits, strict=True)
            ]
        )
    return steps


def _shapes(model: ov.Model, lengths: dict[tuple[int, int], int]) -> list[list[int]]:
    return [
        [
            lengths.get((index, axis), dimension.get_min_length())
            for axis, dimension in enumerate(port.partial_shape)
        ]
        for index, port in enumerate(model.inputs)
    ]


def _states_are_fixed(model: ov.Model) -> bool:
    """Return whether no state gets an open shape: OpenVINO's CPU device would write out of bounds."""
    return all(
        port.partial_shape.is_static
        for node in model.get_ordered_ops()
        if node.get_type_name() in ("ReadValue", "Assign")
        for port in (*node.input_values(), *node.outputs())
    )


def _defined(model: ov.Model, shapes: list[list[int]]) -> bool:
    """Return whether OpenVINO accepts the model with inputs of these shapes."""
    try:
        fixed = model.clone()  # fails for some stateful models
        fixed.reshape({index: ov.PartialShape(shape) for index, shape in enumerate(shapes)})
    except RuntimeError:
        return False
    return True
