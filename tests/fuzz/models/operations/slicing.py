"""Parts of values: slices, splits, reversals."""

from __future__ import annotations

from tests.fuzz.models.graph import Graph, Skip
from tests.fuzz.models.operations.reductions import one_axis, some_axes
from tests.fuzz.models.operations.table import Table
from tests.fuzz.models.values import ALL, name_of

TABLE = Table()


def _ranges(graph: Graph, sizes: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Return begins, ends and steps, also backwards and out of range."""
    begins, ends, steps = [], [], []
    for size in sizes:
        begin, end = graph.dice.randint(-size - 1, size + 1), graph.dice.randint(-size - 1, size + 1)
        step = graph.dice.pick((1, 1, 2, 3, -1, -2))
        if graph.dice.chance(0.7):  # so that a non-empty result is likely
            low, high = sorted((begin % (size or 1), end % (size or 1)))
            begin, end = (low, high + 1) if step > 0 else (high, low - 1 - (size if low == 0 else 0))
        begins.append(begin)
        ends.append(end)
        steps.append(step)
    return begins, ends, steps


@TABLE.entry("Slice", "Slice again")
def _slice(graph: Graph) -> object:
    one = graph.value(least=1)
    axes = some_axes(graph, len(one.shape))
    parts = _ranges(graph, [list(one.shape)[axis] for axis in axes])
    given = [graph.axes(part) for part in parts]
    if graph.dice.chance(0.1):
        given[0] = graph.source([len(axes)], "i64", (0, 2), constant=0.0)
    return graph.add("Slice", [one, *given, graph.axes(axes)], opset=8)


@TABLE.entry("StridedSlice", "StridedSlice again")
def _strided(graph: Graph) -> object:
    one = graph.value(least=1, most=6)
    rank = len(one.shape)
    begins, ends, steps = _ranges(graph, list(one.shape))
    masks = {
        name: [1 if graph.dice.chance(chance) else 0 for _ in range(rank)]
        for name, chance in (
            ("begin_mask", 0.3),
            ("end_mask", 0.3),
            ("new_axis_mask", 0.1),
            ("shrink_axis_mask", 0.15),
            ("ellipsis_mask", 0.0),
        )
    }
    # An out-of-range index reads adjacent memory, and a new axis shifts all.
    if 1 in masks["shrink_axis_mask"]:
        masks["new_axis_mask"] = [0] * rank
        sizes = list(one.shape)
        begins = [
            max(-size, min(begin, size - 1)) if shrink else begin
            for begin, size, shrink in zip(begins, sizes, masks["shrink_axis_mask"], strict=True)
        ]
    return graph.add("StridedSlice", [one, *map(graph.number, (begins, ends, steps))], masks, 1)


@TABLE.entry("Split")
def _split(graph: Graph) -> object:
    one = graph.value(least=1)
    axis = one_axis(graph, len(one.shape))
    size = list(one.shape)[axis]
    parts = graph.dice.pick([count for count in range(1, size + 1) if size % count == 0] or [1])
    return graph.add("Split", [one, graph.number(axis)], {"num_splits": parts}, 1)


@TABLE.entry("VariadicSplit")
def _variadic(graph: Graph) -> object:
    one = graph.value(least=1)
    axis = one_axis(graph, len(one.shape))
    left = list(one.shape)[axis]
    lengths: list[int] = []
    while left and len(lengths) < 4:
        lengths.append(graph.dice.randint(0 if graph.dice.chance(0.1) else 1, left))
        left -= lengths[-1]
    lengths.append(left)
    if graph.dice.chance(0.3):
        lengths[graph.dice.randrange(len(lengths))] = -1
    return graph.add("VariadicSplit", [one, graph.number(axis), graph.number(lengths)], opset=1)


@TABLE.entry("Reverse")
def _reverse(graph: Graph) -> object:
    one = graph.value(least=1)
    axes = [axis % len(one.shape) for axis in some_axes(graph, len(one.shape))]
    return graph.add("Reverse", [one, graph.number(axes)], {"mode": "index"}, 1)


@TABLE.entry("ReverseSequence")
def _reverse_sequence(graph: Graph) -> object:
    one = graph.value(least=2, filled=True)
    batch, axis = graph.dice.sample(range(len(one.shape)), 2)
    lengths = graph.source(
        [list(one.shape)[batch]], graph.dice.pick(("i32", "i64")), (1, list(one.shape)[axis])
    )
    return graph.add("ReverseSequence", [one, lengths], {"batch_axis": batch, "seq_axis": axis}, 1)


@TABLE.entry("Roll")
def _roll(graph: Graph) -> object:
    one = graph.value(least=1)
    axes = some_axes(graph, len(one.shape))
    shifts = graph.source([len(axes)], "i64", (-5, 5), constant=0.7)
    return graph.add("Roll", [one, shifts, graph.number(axes)], opset=7)


@TABLE.entry("ExtractImagePatches")
def _patches(graph: Graph) -> object:
    one = graph.value(ALL, rank=4, filled=True)
    sizes = [graph.dice.randint(1, min(3, size)) for size in list(one.shape)[2:]]
    attributes = {
        "sizes": sizes,
        "strides": [graph.dice.randint(1, 2) for _ in sizes],
        "rates": [1, 1],
        "auto_pad": graph.dice.pick(("valid", "same_upper", "same_lower")),
    }
    return graph.add("ExtractImagePatches", [one], attributes, 3)


@TABLE.entry("SliceScatter")
def _slice_scatter(graph: Graph) -> object:
    one = graph.value(least=1, filled=True)
    shape = list(one.shape)
    axis = one_axis(graph, len(shape)) % len(shape)
    begin = graph.dice.randrange(shape[axis])
    end = graph.dice.randint(begin + 1, shape[axis])
    part = [*shape[:axis], end - begin, *shape[axis + 1 :]]
    ranges = [graph.number([value]) for value in (begin, end, 1, axis)]
    return graph.add("SliceScatter", [one, graph.source(part, name_of(one.element_type)), *ranges], opset=15)


@TABLE.entry("halves that are joined")
def _halves(graph: Graph) -> object:
    """Split a value, use the parts separately and rejoin them."""
    one = graph.value(("f32",), least=1, filled=True)
    axis = one_axis(graph, len(one.shape))
    if list(one.shape)[axis] % 2:
        raise Skip("an odd length")
    low, high = graph.add("Split", [one, graph.number(axis)], {"num_splits": 2}, 1)
    return graph.add("Concat", [*graph.add("Sigmoid", [high]), low], {"axis": axis}, 1)
