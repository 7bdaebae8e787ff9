"""Replace recurrent sequences with lengths by loops over their cells, which stop at these lengths.

`of_known_batch` is for those that OpenVINO does not compile.

With dynamic dimensions OpenVINO's CPU runtime (2026.4) ignores the lengths: each sequence runs to the end.
With known shapes it makes such loops itself, but a sequence of length 0 ends in zeros instead of its first
state. Lengths that equal the time, or are computed from shapes, are left alone: they need no loop.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from softnpu.emulator.common.graph_edits import depends_on_inputs, is_fixed, numbers
from softnpu.emulator.common.model_bodies import all_bodies
from softnpu.emulator.openvino.defects.guarding import folded

STATES: Final = {"LSTMSequence": 2, "GRUSequence": 1, "RNNSequence": 1}
_CELLS: Final = {"LSTMSequence": "lstm_cell", "GRUSequence": "gru_cell", "RNNSequence": "rnn_cell"}
_LAST: Final = -1


def heed(model: ov.Model) -> bool:
    """Replace them in a newly read model and its bodies. Returns whether there were any."""
    found = False
    for part in [model, *all_bodies(model)]:
        sequences = [node for node in part.get_ordered_ops() if _has_lengths(node)]
        for node in sequences:
            _replace(node)
        if sequences:
            part.validate_nodes_and_infer_types()
            found = True
    return found


def of_known_batch(node: Any) -> bool:
    """OpenVINO makes no memory of a constant first state if the batch of the data is open.

    Both batches are one: data of another are refused.
    """
    data = node.get_input_partial_shape(0)
    if data.rank.is_dynamic or data[0].is_static:
        return False
    first = node.input_values()[1 : 1 + STATES[node.get_type_name()]]
    batch = next((each.get_partial_shape()[0] for each in first if is_fixed(each)), None)
    if batch is None or batch.is_dynamic:
        return False
    known = ops.reshape(node.input_value(0), numbers([batch.get_length(), 0, 0]), special_zero=True)
    known.set_friendly_name(f"{node.get_friendly_name()}/batch")
    node.input(0).replace_source_output(known.output(0))
    return True


def _has_lengths(node: Any) -> bool:
    states = STATES.get(node.get_type_name())
    if states is None:
        return False
    data, lengths = node.get_input_partial_shape(0), node.input_value(1 + states)
    if data.rank.is_dynamic or not all(is_fixed(each) for each in node.input_values()[2 + states :]):
        return False
    if lengths.get_node().get_type_name() == "Constant":
        return data[1].is_dynamic or bool((lengths.get_node().data != data[1].get_length()).any())
    return depends_on_inputs(lengths)


def _replace(node: Any) -> None:
    states = STATES[node.get_type_name()]
    data, lengths = node.input_value(0), ops.convert(node.input_value(1 + states), "i64")
    time = ops.gather(ops.shape_of(data, "i64"), ops.constant(1), ops.constant(0))
    lengths = ops.minimum(ops.maximum(lengths, ops.constant(np.int64(0))), time)
    is_open = data.get_partial_shape()[1].get_min_length() == 0
    if is_open:  # OpenVINO refuses a loop of no steps: it has one, beyond any length
        none = ops.convert(ops.equal(time, ops.constant(np.int64(0))), "i64")
        ends = ops.concat([numbers([0]), ops.unsqueeze(none, ops.constant(0)), numbers([0])], 0)
        zero = ops.constant(0, data.get_element_type())
        data = ops.pad(data, numbers([0, 0, 0]), ends, "constant", zero).output(0)
    direction = node.get_attributes()["direction"]
    both = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    made = [_loop(node, data, lengths, at, backwards) for at, backwards in enumerate(both)]
    for output, parts in zip(node.outputs(), zip(*made, strict=True), strict=True):
        joined = parts[0] if len(parts) == 1 else ops.concat(list(parts), 1).output(0)
        if is_open and not output.get_index():
            end = ops.unsqueeze(time, ops.constant(0))
            joined = ops.slice(joined, numbers([0]), end, numbers([1]), numbers([2])).output(0)
        joined.get_node().set_friendly_name(f"{node.get_friendly_name()}/{output.get_index()}")
        for reader in output.get_target_inputs():
            reader.replace_source_output(joined)


def _loop(node: Any, data: Any, lengths: Any, at: int, backwards: bool) -> list[Any]:
    """Return the results of direction number `at`: all steps, and the last of each state."""
    states, element_type = STATES[node.get_type_name()], data.get_element_type()
    if backwards:
        data = ops.reverse_sequence(data, lengths, 0, 1).output(0)
    sizes = list(data.get_partial_shape())
    step = ops.parameter([sizes[0], 1, sizes[2]], element_type)
    chosen = ops.constant(at)
    first = [ops.gather(node.input_value(1 + state), chosen, ops.constant(1)) for state in range(states)]
    before = [ops.parameter(each.get_output_partial_shape(0), element_type) for each in first]
    length, number = ops.parameter([sizes[0]], np.int64), ops.parameter([1], np.int64)

    weights = [ops.gather(each, chosen, ops.constant(0)) for each in node.input_values()[2 + states :]]
    if all(is_fixed(each) for each in (data, *(each.output(0) for each in first), lengths.output(0))):
        # OpenVINO unrolls such a loop, and then refuses cells whose weights it has not folded before
        weights = [folded(each.output(0)) for each in weights]
    attributes = {name: value for name, value in node.get_attributes().items() if name != "direction"}
    new_cell = getattr(ops, _CELLS[node.get_type_name()])  # only now: operations are imported when used
    cell = new_cell(ops.squeeze(step, numbers([1])), *before, *weights, **attributes)
    goes_on = ops.unsqueeze(ops.less(number, length), numbers([1]))
    zero = ops.constant(0, element_type)
    row = ops.result(ops.unsqueeze(ops.select(goes_on, cell.output(0), zero), numbers([1])))
    after = [
        ops.result(ops.select(goes_on, result, old))
        for result, old in zip(cell.outputs(), before, strict=True)
    ]
    next_number = ops.result(ops.add(number, numbers([1])))

    loop = ops.tensor_iterator()
    loop.set_function(ov.Model([row, *after, next_number], [step, *before, length, number], "step"))
    loop.set_sliced_input(step, data, 0, 1, 1, _LAST, 1)
    loop.set_invariant_input(length, lengths.output(0))
    loop.set_merged_input(number, numbers([0]).output(0), next_number.output(0))
    for old, value, new in zip(before, first, after, strict=True):
        loop.set_merged_input(old, value.output(0), new.output(0))
    rows = loop.get_concatenated_slices(row.output(0), 0, 1, 1, _LAST, 1)
    if backwards:
        rows = ops.reverse_sequence(rows, lengths, 0, 1).output(0)
    last = [loop.get_iter_value(each.output(0), _LAST) for each in after]
    return [ops.unsqueeze(each, numbers([1])).output(0) for each in (rows, *last)]
