"""Shape changes: reshaping, joining, repeating, and arithmetic with shapes themselves."""

from __future__ import annotations

import math

from tests.fuzz.models.graph import Graph
from tests.fuzz.models.operations.reductions import one_axis
from tests.fuzz.models.operations.table import Table
from tests.fuzz.models.values import NUMBERS, name_of

TABLE = Table()


def _factors(graph: Graph, count: int, most: int) -> list[int]:
    """Return numbers whose product is `count`."""
    sizes = [1] * graph.dice.randint(0 if count == 1 else 1, most)
    for prime in (2, 3, 5, 7):
        while count % prime == 0 and count:
            sizes[graph.dice.randrange(len(sizes))] *= prime
            count //= prime
    if count > 1:
        sizes[graph.dice.randrange(len(sizes))] *= count
    return sizes


@TABLE.entry("Reshape", "Reshape again")
def _reshape(graph: Graph) -> object:
    one = graph.value()
    shape = list(one.shape)
    count = math.prod(shape)
    if not count:
        pattern = graph.dice.sample(shape, len(shape))
        return graph.add("Reshape", [one, graph.axes(pattern)], {"special_zero": False}, 1)
    pattern = _factors(graph, count, 6)
    if pattern and graph.dice.chance(0.3):
        pattern[graph.dice.randrange(len(pattern))] = -1
    special = graph.dice.chance(0.3)
    if special and shape and pattern and graph.dice.chance(0.7):
        pattern = [0, *_factors(graph, count // shape[0], 4)]
    return graph.add("Reshape", [one, graph.axes(pattern)], {"special_zero": special}, 1)


@TABLE.entry("to a scalar")
def _to_scalar(graph: Graph) -> object:
    """Reshape a single number to a scalar: the pattern is an empty constant."""
    one = graph.value(NUMBERS, filled=True)
    if math.prod(one.shape) != 1:
        axes = graph.number(list(range(len(one.shape))))
        one = graph.add("ReduceMax", [one, axes], {"keep_dims": True})[0]
    return graph.add("Reshape", [one, graph.axes([])], {"special_zero": graph.dice.chance(0.5)}, 1)


@TABLE.entry("Transpose", "Transpose again")
def _transpose(graph: Graph) -> object:
    one = graph.value()
    rank = len(one.shape)
    order = [] if graph.dice.chance(0.15) else graph.dice.sample(range(rank), rank)
    return graph.add("Transpose", [one, graph.axes(order)], opset=1)


@TABLE.entry("Squeeze")
def _squeeze(graph: Graph) -> object:
    one = graph.value()
    axes = [axis for axis, size in enumerate(one.shape) if size == 1 and graph.dice.chance(0.7)]
    given = [graph.axes(axes)] if axes else []
    return graph.add("Squeeze", [one, *given], opset=graph.dice.pick((1, 15)))


@TABLE.entry("Unsqueeze")
def _unsqueeze(graph: Graph) -> object:
    one = graph.value(most=6)
    rank = len(one.shape)
    axes = graph.dice.sample(range(rank + 2), 2) if graph.dice.chance(0.5) else [graph.dice.randint(0, rank)]
    return graph.add("Unsqueeze", [one, graph.axes(axes)], opset=1)


@TABLE.entry("Concat", "Concat again")
def _concat(graph: Graph) -> object:
    one = graph.value(least=1)
    shape = list(one.shape)
    axis = one_axis(graph, len(shape))
    parts = [one]
    for _ in range(graph.dice.randint(0, 3)):
        others = [
            other
            for other in graph.pool
            if other.element_type == one.element_type
            and other.partial_shape.is_static
            and len(other.shape) == len(shape)
            and all(
                a == b
                for at, (a, b) in enumerate(zip(other.shape, shape, strict=True))
                if at != axis % len(shape)
            )
        ]
        if others and graph.dice.chance(0.6):
            parts.append(graph.dice.pick(others))
            continue
        sizes = list(shape)
        sizes[axis] = graph.size()
        parts.append(graph.source(sizes, name_of(one.element_type)))
    return graph.add("Concat", graph.dice.sample(parts, len(parts)), {"axis": axis}, 1)


@TABLE.entry("Pad", "Pad again")
def _pad(graph: Graph) -> object:
    one = graph.value(least=1, most=6)
    rank = len(one.shape)
    mode = graph.dice.pick(("constant", "constant", "edge", "reflect", "symmetric"))
    opset = graph.dice.pick((1, 12))
    low = -1 if opset == 12 and mode == "constant" else 0
    begin, end = (
        [graph.dice.randint(low, 2) if graph.dice.chance(0.5) else 0 for _ in range(rank)] for _ in range(2)
    )
    value = [graph.source([], name_of(one.element_type), constant=0.8)] if mode == "constant" else []
    return graph.add("Pad", [one, graph.axes(begin), graph.axes(end), *value], {"pad_mode": mode}, opset)


@TABLE.entry("Tile")
def _tile(graph: Graph) -> object:
    one = graph.value(most=6)
    rank = len(one.shape) + graph.dice.pick((0, 0, 1, -1))
    repeats = [graph.dice.pick((1, 1, 2, 3)) for _ in range(max(rank, 0))]
    return graph.add("Tile", [one, graph.axes(repeats)], opset=1)


@TABLE.entry("Broadcast")
def _broadcast(graph: Graph) -> object:
    one = graph.value(most=6)
    shape = list(one.shape)
    mode = graph.dice.pick(("numpy", "bidirectional", "explicit"))
    target = [graph.dice.randint(1, 4) if size == 1 else size for size in shape]
    front = [graph.dice.randint(1, 3) for _ in range(graph.dice.randint(0, 2))]
    if mode == "explicit":
        axes = graph.axes(list(range(len(front), len(front) + len(shape))))
        return graph.add("Broadcast", [one, graph.axes(front + shape), axes], {"mode": mode}, 3)
    return graph.add("Broadcast", [one, graph.axes(front + target)], {"mode": mode}, 3)


@TABLE.entry("ShapeOf")
def _shape_of(graph: Graph) -> object:
    """Add the shape as numbers, and something computed from it."""
    out = graph.add("ShapeOf", [graph.value()], {"output_type": graph.dice.pick(("i32", "i64"))}, 3)
    return (
        graph.add("ReduceProd", [*out, graph.axes([0])], {"keep_dims": graph.dice.chance(0.5)})
        if graph.dice.chance(0.5)
        else out
    )


@TABLE.entry("a shape that is computed")
def _computed_shape(graph: Graph) -> object:
    """Reshape to another value's shape, disassembled and reassembled."""
    one = graph.value(least=1, most=5, filled=True)
    shape = graph.add("ShapeOf", [one], {"output_type": "i64"}, 3, pooled=False)
    first = graph.add("Gather", [*shape, graph.number([0]), graph.number(0)], opset=8, pooled=False)
    pattern = graph.add("Concat", [*first, graph.number([-1])], {"axis": 0}, 1, pooled=False)
    return graph.add("Reshape", [one, *pattern], {"special_zero": False}, 1)


@TABLE.entry("DepthToSpace", "SpaceToDepth")
def _depth(graph: Graph) -> object:
    one = graph.value(least=3, most=5, filled=True)
    shape = list(one.shape)
    mode = graph.dice.pick(("blocks_first", "depth_first"))
    if graph.dice.chance(0.5):
        block = next((size for size in (2, 1) if shape[1] % size ** (len(shape) - 2) == 0), 1)
        return graph.add("DepthToSpace", [one], {"mode": mode, "block_size": block}, 1)
    block = 2 if all(size % 2 == 0 for size in shape[2:]) else 1
    return graph.add("SpaceToDepth", [one], {"mode": mode, "block_size": block}, 1)


@TABLE.entry("SpaceToBatch", "BatchToSpace")
def _batch(graph: Graph) -> object:
    one = graph.value(least=2, most=5, filled=True)
    shape = list(one.shape)
    rank = len(shape)
    if graph.dice.chance(0.5):
        block = [1] + [2 if size % 2 == 0 else 1 for size in shape[1:]]
        pads = [[0] * rank, [0] * rank]
        return graph.add("SpaceToBatch", [one, *map(graph.number, (block, *pads))], opset=2)
    block = [1] * rank
    block[-1] = 2 if shape[0] % 2 == 0 else 1
    crops = [[0] * rank, [0] * (rank - 1) + [graph.dice.randint(0, 1)]]
    return graph.add("BatchToSpace", [one, *map(graph.number, (block, *crops))], opset=2)


@TABLE.entry("ShuffleChannels")
def _shuffle(graph: Graph) -> object:
    one = graph.value(least=2, filled=True)
    axis = one_axis(graph, len(one.shape))
    size = list(one.shape)[axis]
    group = graph.dice.pick([count for count in range(1, size + 1) if size % count == 0])
    return graph.add("ShuffleChannels", [one], {"axis": axis, "group": group}, 3)


@TABLE.entry("Range")
def _range(graph: Graph) -> object:
    kind = graph.dice.pick(("i32", "i64", "f32"))
    stop = graph.source([], kind, (0, 7), constant=0.5)
    numbers = [graph.number(0, kind), stop, graph.number(graph.dice.pick((1, 2)), kind)]
    return graph.add("Range", numbers, {"output_type": kind}, 4)


@TABLE.entry("Eye")
def _eye(graph: Graph) -> object:
    sizes = [graph.axes(graph.dice.randint(1, 5)) for _ in range(2)]
    return graph.add(
        "Eye",
        [*sizes, graph.number(graph.dice.randint(-2, 2))],
        {"output_type": graph.dice.pick(("f32", "i32", "u8"))},
        9,
    )


@TABLE.entry("OneHot")
def _one_hot(graph: Graph) -> object:
    depth = graph.dice.randint(1, 6)
    one = graph.source(
        graph.shape(most=4), graph.dice.pick(("i32", "i64")), (-1 if graph.dice.chance(0.2) else 0, depth)
    )
    kind = graph.dice.pick(("f32", "i32", "u8", "boolean", "i64"))
    numbers = [graph.number(depth), graph.number(1, kind), graph.number(0, kind)]
    return graph.add("OneHot", [one, *numbers], {"axis": graph.dice.randint(-1, len(one.shape))}, 1)
