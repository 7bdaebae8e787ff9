"""Reductions, cumulation, softmax, normalisation, and sorting."""

from __future__ import annotations

from tests.fuzz.models.graph import Graph, Skip
from tests.fuzz.models.operations.table import Table
from tests.fuzz.models.values import ALL, FLOATS, NUMBERS, name_of

TABLE = Table()


def some_axes(graph: Graph, rank: int, least: int = 1) -> list[int]:
    """Return distinct axes, some counted from the end."""
    count = graph.dice.randint(min(least, rank), rank)
    axes = graph.dice.sample(range(rank), count)
    return [axis - rank if graph.dice.chance(0.3) else axis for axis in axes]


def one_axis(graph: Graph, rank: int) -> int:
    """Return one axis, sometimes counted from the end."""
    if not rank:
        raise Skip("a scalar has no axis")
    return graph.dice.randrange(-rank, rank)


def _reduction(kind: str, kinds: tuple[str, ...]) -> None:
    def add(graph: Graph) -> object:
        one = graph.value(kinds)
        axes = some_axes(graph, len(one.shape), 0 if graph.dice.chance(0.1) else 1)
        by = graph.number(axes[0]) if len(axes) == 1 and graph.dice.chance(0.3) else graph.axes(axes)
        return graph.add(kind, [one, by], {"keep_dims": graph.dice.chance(0.5)})

    TABLE[kind] = add


for _kind in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"):
    _reduction(_kind, NUMBERS)
for _kind in ("ReduceLogicalAnd", "ReduceLogicalOr"):
    _reduction(_kind, ("boolean",))


@TABLE.entry("Softmax", "LogSoftmax")
def _softmax(graph: Graph) -> object:
    one = graph.value(FLOATS, least=1)
    axis = one_axis(graph, len(one.shape))
    if graph.dice.chance(0.3):
        return graph.add("LogSoftmax", [one], {"axis": axis}, 5)
    if graph.dice.chance(0.3):
        return graph.add("Softmax", [one], {"axis": axis % len(one.shape)}, 1)
    return graph.add("Softmax", [one], {"axis": axis}, 8)


@TABLE.entry("CumSum")
def _cumsum(graph: Graph) -> object:
    one = graph.value(NUMBERS, least=1)
    axis = graph.number(one_axis(graph, len(one.shape)))
    return graph.add(
        "CumSum", [one, axis], {"exclusive": graph.dice.chance(0.5), "reverse": graph.dice.chance(0.5)}
    )


@TABLE.entry("TopK", "TopK again")
def _topk(graph: Graph) -> object:
    one = graph.value(NUMBERS, least=1, filled=True)
    axis = one_axis(graph, len(one.shape))
    count = graph.number(graph.dice.randint(1, list(one.shape)[axis]))
    attributes = {
        "axis": axis,
        "mode": graph.dice.pick(("max", "min")),
        "sort": graph.dice.pick(("value", "index", "none")),
        "index_element_type": graph.dice.pick(("i32", "i64")),
    }
    opset = graph.dice.pick((1, 3, 11))
    if opset == 1:
        attributes["index_element_type"] = "i32"
    if opset == 11:
        attributes["stable"] = attributes["sort"] != "none" and graph.dice.chance(0.5)
    return graph.add("TopK", [one, count], attributes, opset)


@TABLE.entry("MVN")
def _mvn(graph: Graph) -> object:
    if graph.dice.chance(0.2):
        one = graph.value(("f32",), least=3, most=5, filled=True)
        attributes: dict[str, object] = {
            "across_channels": graph.dice.chance(0.5),
            "normalize_variance": True,
            "eps": 1e-5,
        }
        return graph.add("MVN", [one], attributes, 2)
    one = graph.value(FLOATS, least=1, filled=True)
    attributes = {
        "normalize_variance": graph.dice.chance(0.8),
        "eps": graph.dice.pick((1e-9, 1e-5)),
        "eps_mode": graph.dice.pick(("inside_sqrt", "outside_sqrt")),
    }
    return graph.add("MVN", [one, graph.axes(some_axes(graph, len(one.shape)))], attributes, 6)


@TABLE.entry("a layer normalisation")
def _layer_normalisation(graph: Graph) -> object:
    """Add it in parts, as exporters write it; the CPU fuses them into one operation."""
    one = graph.value(("f32",), least=2, most=4, filled=True)
    last = graph.axes([-1])
    mean = graph.add("ReduceMean", [one, last], {"keep_dims": True}, pooled=False)
    away = graph.add("Subtract", [one, *mean], pooled=False)
    squares = graph.add("Power", [*away, graph.number(2.0, "f32")], pooled=False)
    variance = graph.add("ReduceMean", [*squares, last], {"keep_dims": True}, pooled=False)
    wide = graph.add("Add", [*variance, graph.number(1e-5, "f32")], pooled=False)
    out = graph.add("Divide", [*away, *graph.add("Sqrt", wide, pooled=False)], {"m_pythondiv": True})
    width = [list(one.shape)[-1]]
    scaled = graph.add("Multiply", [*out, graph.source(width, "f32", constant=0.8)])
    return graph.add("Add", [*scaled, graph.source(width, "f32", constant=0.8)])


@TABLE.entry("NormalizeL2")
def _normalize_l2(graph: Graph) -> object:
    one = graph.value(("f32",), least=1, most=4, filled=True)
    attributes = {"eps": 1e-6, "eps_mode": graph.dice.pick(("add", "max"))}
    return graph.add("NormalizeL2", [one, graph.axes(some_axes(graph, len(one.shape)))], attributes)


@TABLE.entry("LRN")
def _lrn(graph: Graph) -> object:
    one = graph.value(("f32",), least=3, most=4, filled=True)
    attributes = {"alpha": 1e-3, "beta": 0.75, "bias": 1.0, "size": graph.dice.pick((1, 3, 5))}
    return graph.add(
        "LRN", [one, graph.axes(graph.dice.pick(([1], list(range(2, len(one.shape))))))], attributes
    )


@TABLE.entry("GroupNormalization")
def _group_normalisation(graph: Graph) -> object:
    one = graph.value(("f32", "f16"), least=2, most=5, filled=True)
    kind, channels = name_of(one.element_type), list(one.shape)[1]
    groups = graph.dice.pick([count for count in range(1, channels + 1) if channels % count == 0])
    scales = [graph.source([channels], kind, constant=0.8) for _ in range(2)]
    return graph.add("GroupNormalization", [one, *scales], {"num_groups": groups, "epsilon": 1e-5}, 12)


@TABLE.entry("BatchNormInference")
def _batch_normalisation(graph: Graph) -> object:
    one = graph.value(("f32", "f16"), least=2, most=5, filled=True)
    kind, channels = name_of(one.element_type), list(one.shape)[1]
    gamma, beta, mean = (graph.constant([channels], kind) for _ in range(3))
    variance = graph.constant([channels], kind, (1, 3))
    return graph.add("BatchNormInference", [one, gamma, beta, mean, variance], {"epsilon": 1e-3}, 5)


@TABLE.entry("NonZero")
def _non_zero(graph: Graph) -> object:
    return graph.add("NonZero", [graph.value(ALL)], {"output_type": graph.dice.pick(("i32", "i64"))}, 3)


@TABLE.entry("Unique")
def _unique(graph: Graph) -> object:
    # for 8-bit inputs the CPU device writes only a quarter of each index
    one = graph.value(("f32", "i32", "i64"), filled=True)
    axes = (
        [graph.number(one_axis(graph, len(one.shape)))] if len(one.shape) and graph.dice.chance(0.5) else []
    )
    attributes = {
        "sorted": graph.dice.chance(0.7),
        "index_element_type": graph.dice.pick(("i32", "i64")),
        "count_element_type": graph.dice.pick(("i32", "i64")),
    }
    return graph.add("Unique", [one, *axes], attributes, 10)
