"""Gathering, scattering, embedding, and lookups."""

from __future__ import annotations

from typing import Any

from tests.fuzz.models.graph import Graph, Skip
from tests.fuzz.models.operations.reductions import one_axis
from tests.fuzz.models.operations.table import Table
from tests.fuzz.models.values import NUMBERS, name_of

TABLE = Table()
_TABLES = ("f32", "f32", "f16", "i32", "i64", "u8", "i8")


def _indices(graph: Graph, shape: list[int], size: int, constant: float = 0.5, below: bool = False) -> Any:
    """Return indices of an axis of that length; `below`: some count from the end.

    There is at least one: with none, OpenVINO's CPU device crashes in a division by zero.
    """
    if size < 1 or 0 in shape:
        raise Skip("nothing to choose from")
    return graph.source(shape, graph.dice.pick(("i32", "i64")), (-size if below else 0, size - 1), constant)


@TABLE.entry("Gather", "Gather again", "Gather once more")
def _gather(graph: Graph) -> object:
    one = graph.value(least=1, filled=True)
    shape = list(one.shape)
    axis = one_axis(graph, len(shape)) % len(shape)
    opset = graph.dice.pick((1, 7, 8))
    indices = _indices(graph, graph.shape(most=3), shape[axis], below=opset == 8 and graph.dice.chance(0.5))
    return graph.add(
        "Gather", [one, indices, graph.number(axis)], {} if opset == 1 else {"batch_dims": 0}, opset
    )


@TABLE.entry("Gather with batches")
def _gather_batches(graph: Graph) -> object:
    one = graph.value(least=2, filled=True)
    shape = list(one.shape)
    indices = _indices(graph, [shape[0], *graph.shape(most=2)], shape[1])
    return graph.add("Gather", [one, indices, graph.number(1)], {"batch_dims": 1}, graph.dice.pick((7, 8)))


@TABLE.entry("Gather of packed weights")
def _embedding(graph: Graph) -> object:
    packed = graph.constant([graph.dice.randint(2, 9), 4], graph.dice.pick(("u8", "i8", "u4", "i4", "f16")))
    wide = graph.add("Convert", [packed], {"destination_type": "f32"}, pooled=False)
    scales = graph.constant([next(iter(packed.shape)), 1], "f32")
    scaled = graph.add("Multiply", [*wide, scales], pooled=False)
    indices = _indices(graph, graph.shape(most=3), next(iter(packed.shape)), constant=0.1)
    return graph.add("Gather", [*scaled, indices, graph.number(0)], {"batch_dims": 0}, 8)


@TABLE.entry("GatherElements")
def _gather_elements(graph: Graph) -> object:
    one = graph.value(_TABLES, least=1, filled=True)
    shape = list(one.shape)
    axis = one_axis(graph, len(shape))
    sizes = list(shape)
    sizes[axis] = graph.dice.randint(1, 5)
    return graph.add("GatherElements", [one, _indices(graph, sizes, shape[axis])], {"axis": axis}, 6)


@TABLE.entry("GatherND")
def _gather_nd(graph: Graph) -> object:
    one = graph.value(_TABLES, least=1, most=5, filled=True)
    shape = list(one.shape)
    depth = graph.dice.randint(1, len(shape))
    indices = _indices(graph, [*graph.shape(most=2), depth], min(shape[:depth]))
    return graph.add("GatherND", [one, indices], {"batch_dims": 0}, graph.dice.pick((5, 8)))


@TABLE.entry("GatherTree")
def _gather_tree(graph: Graph) -> object:
    steps, batch, beams = (graph.dice.randint(1, 4) for _ in range(3))
    kind = "i32"  # float indices could lie between two numbers
    ids = graph.source([steps, batch, beams], kind, (0, 9))
    parents = graph.source([steps, batch, beams], kind, (0, 0) if beams == 1 else (0, beams - 1))
    lengths = graph.source([batch], kind, (steps, steps))
    return graph.add("GatherTree", [ids, parents, lengths, graph.number(9, kind)], opset=1)


@TABLE.entry("ScatterUpdate")
def _scatter_update(graph: Graph) -> object:
    one = graph.value(_TABLES, least=1, filled=True)
    shape = list(one.shape)
    axis = one_axis(graph, len(shape)) % len(shape)
    chosen = graph.dice.sample(range(shape[axis]), graph.dice.randint(1, shape[axis]))
    updates = graph.source([*shape[:axis], len(chosen), *shape[axis + 1 :]], name_of(one.element_type))
    return graph.add("ScatterUpdate", [one, graph.axes(chosen), updates, graph.number(axis)], opset=3)


@TABLE.entry("ScatterElementsUpdate")
def _scatter_elements(graph: Graph) -> object:
    one = graph.value(_TABLES, least=1, filled=True)
    shape = list(one.shape)
    axis = one_axis(graph, len(shape))
    sizes = list(shape)
    sizes[axis] = 1
    # one index per line: duplicate writes have no defined order
    indices = _indices(graph, sizes, shape[axis])
    inputs = [one, indices, graph.source(sizes, name_of(one.element_type)), graph.number(axis)]
    if graph.dice.chance(0.4):
        return graph.add("ScatterElementsUpdate", inputs, opset=3)
    reduction = graph.dice.pick(("none", "sum", "prod", "min", "max", "mean"))
    return graph.add(
        "ScatterElementsUpdate", inputs, {"reduction": reduction, "use_init_val": graph.dice.chance(0.6)}, 12
    )


@TABLE.entry("ScatterNDUpdate")
def _scatter_nd(graph: Graph) -> object:
    one = graph.value(_TABLES, least=1, most=5, filled=True)
    shape = list(one.shape)
    chosen = graph.dice.sample(range(shape[0]), graph.dice.randint(1, shape[0]))
    updates = graph.source([len(chosen), *shape[1:]], name_of(one.element_type))
    inputs = [one, graph.axes([[index] for index in chosen]), updates]
    if graph.dice.chance(0.5):
        return graph.add("ScatterNDUpdate", inputs, opset=4)
    return graph.add(
        "ScatterNDUpdate",
        inputs,
        {"reduction": graph.dice.pick(("none", "sum", "sub", "prod", "min", "max"))},
        15,
    )


@TABLE.entry("Bucketize")
def _bucketize(graph: Graph) -> object:
    buckets = graph.number(sorted(graph.dice.uniform(-3, 3) for _ in range(graph.dice.randint(0, 5))), "f32")
    attributes = {"output_type": graph.dice.pick(("i32", "i64")), "with_right_bound": graph.dice.chance(0.5)}
    return graph.add("Bucketize", [graph.value(("f32", "i32", "i64")), buckets], attributes, 3)


@TABLE.entry("SearchSorted")
def _search_sorted(graph: Graph) -> object:
    rows, width = graph.shape(most=1), graph.dice.randint(1, 6)
    one = graph.source([*rows, graph.dice.randint(1, 4)], "f32")
    order = graph.add(
        "CumSum", [graph.constant([*rows, width], "f32", (0, 3)), graph.number(-1)], opset=3, pooled=False
    )
    return graph.add("SearchSorted", [*order, one], {"right_mode": graph.dice.chance(0.5)}, 15)


@TABLE.entry("EmbeddingBagPackedSum", "EmbeddingBagPacked")
def _bag_packed(graph: Graph) -> object:
    rows = graph.dice.randint(1, 6)
    table = graph.source([rows, graph.dice.randint(1, 5)], graph.dice.pick(("f32", "f32", "f16", "i32")))
    indices = _indices(graph, [graph.dice.randint(1, 4), graph.dice.randint(1, 4)], rows)
    if graph.dice.chance(0.5):
        return graph.add("EmbeddingBagPackedSum", [table, indices], opset=3)
    return graph.add(
        "EmbeddingBagPacked", [table, indices], {"reduction": graph.dice.pick(("sum", "mean"))}, 15
    )


@TABLE.entry("EmbeddingBagOffsetsSum", "EmbeddingBagOffsets")
def _bag_offsets(graph: Graph) -> object:
    rows, count = graph.dice.randint(1, 6), graph.dice.randint(2, 6)
    table = graph.source([rows, graph.dice.randint(1, 5)], "f32")
    indices = graph.source([count], "i32", (0, rows - 1))
    offsets = graph.number(
        sorted(graph.dice.sample(range(1, count), graph.dice.randint(0, count - 1))), "i32"
    )
    offsets = graph.add("Concat", [graph.number([0], "i32"), offsets], {"axis": 0}, 1, pooled=False)[0]
    if graph.dice.chance(0.5):
        return graph.add("EmbeddingBagOffsetsSum", [table, indices, offsets], opset=3)
    return graph.add(
        "EmbeddingBagOffsets", [table, indices, offsets], {"reduction": graph.dice.pick(("sum", "mean"))}, 15
    )


@TABLE.entry("EmbeddingSegmentsSum")
def _segments(graph: Graph) -> object:
    rows, count = graph.dice.randint(1, 6), graph.dice.randint(1, 6)
    table = graph.source([rows, graph.dice.randint(1, 5)], "f32")
    indices = graph.source([count], "i32", (0, rows - 1))
    segments = graph.number(sorted(graph.dice.randrange(count) for _ in range(count)), "i32")
    return graph.add("EmbeddingSegmentsSum", [table, indices, segments, graph.number(count, "i32")], opset=3)


@TABLE.entry("ScatterUpdate of one")
def _scatter_one(graph: Graph) -> object:
    one = graph.value(NUMBERS, rank=1, filled=True)
    at = graph.source([1], "i64", (0, next(iter(one.shape)) - 1), constant=0.2)
    return graph.add(
        "ScatterUpdate", [one, at, graph.source([1], name_of(one.element_type)), graph.number(0)], opset=3
    )
