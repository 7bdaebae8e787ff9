"""Elementwise operations, and type conversions."""

from __future__ import annotations

from typing import Any

from tests.fuzz.models.graph import Graph
from tests.fuzz.models.operations.table import Table
from tests.fuzz.models.values import ALL, FLOATS, INTEGERS, NARROW, NUMBERS, SMALL, name_of

TABLE = Table()

_FLOAT_UNARY: dict[str, int] = {
    "Acos": 1, "Acosh": 4, "Asin": 1, "Asinh": 4, "Atan": 1, "Atanh": 4, "Cos": 1, "Cosh": 1, "Erf": 1,
    "Exp": 1, "HSigmoid": 5, "HSwish": 4, "Log": 1, "Mish": 4, "Sigmoid": 1, "Sin": 1, "Sinh": 1,
    "SoftPlus": 4, "SoftSign": 9, "Sqrt": 1, "Tan": 1, "Tanh": 1, "IsFinite": 10, "IsInf": 10, "IsNaN": 10,
}  # fmt: skip
_ANY_UNARY = ("Abs", "Ceiling", "Floor", "Negative", "Relu", "Sign")
_BINARY = ("Add", "Subtract", "Multiply", "Maximum", "Minimum", "Power", "SquaredDifference")
_DIVISIONS = ("Divide", "Mod", "FloorMod")
_COMPARISONS = ("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual")
_LOGICAL = ("LogicalAnd", "LogicalOr", "LogicalXor")
_BITS = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")


def _unary(kind: str, kinds: tuple[str, ...], opset: int) -> None:
    def add(graph: Graph) -> object:
        return graph.add(kind, [graph.value(kinds)], opset=opset)

    TABLE[kind] = add


def _binary(kind: str, kinds: tuple[str, ...], opset: int = 13) -> None:
    def add(graph: Graph) -> object:
        one = graph.value(kinds)
        operands = [one, graph.mate(one)]
        if graph.dice.chance(0.3):
            operands.reverse()
        attributes = {} if graph.dice.chance(0.9) else {"auto_broadcast": "numpy"}
        return graph.add(kind, operands, attributes, opset)

    TABLE[kind] = add


def _division(kind: str) -> None:
    def add(graph: Graph) -> object:
        one = graph.value(NUMBERS)
        name = name_of(one.element_type)
        # integer division by zero kills the OpenVINO process
        below = graph.mate(one) if name in FLOATS else graph.constant(list(one.shape), name, (1, 7))
        return graph.add(
            kind, [one, below], {"m_pythondiv": graph.dice.chance(0.7)} if kind == "Divide" else {}
        )

    TABLE[kind] = add


for _kind, _set in _FLOAT_UNARY.items():
    _unary(_kind, FLOATS, max(_set, 1))
for _kind in _ANY_UNARY:
    _unary(_kind, NUMBERS, 13)
_unary("LogicalNot", ("boolean",), 1)
_unary("BitwiseNot", (*INTEGERS, "boolean"), 13)
for _kind in _BINARY:
    _binary(_kind, NUMBERS)
for _kind in _DIVISIONS:
    _division(_kind)
for _kind in _COMPARISONS:
    _binary(_kind, ALL)
for _kind in _LOGICAL:
    _binary(_kind, ("boolean",))
for _kind in _BITS:
    _binary(_kind, (*INTEGERS, "boolean"))


@TABLE.entry("BitwiseLeftShift", "BitwiseRightShift")
def _shift(graph: Graph) -> object:
    one = graph.value(INTEGERS)
    by = graph.constant(list(one.shape), name_of(one.element_type), (0, 6))
    return graph.add(graph.dice.pick(("BitwiseLeftShift", "BitwiseRightShift")), [one, by], opset=15)


@TABLE.entry("Clamp")
def _clamp(graph: Graph) -> object:
    low = graph.dice.pick((-1.0, 0.0, 0.5, -6.0))
    high = low + graph.dice.pick((0.0, 1.0, 6.0, 100.0))
    return graph.add("Clamp", [graph.value(NUMBERS)], {"min": low, "max": high})


@TABLE.entry("Elu")
def _elu(graph: Graph) -> object:
    return graph.add("Elu", [graph.value(FLOATS)], {"alpha": graph.dice.pick((0.5, 1.0, 2.0))})


@TABLE.entry("Gelu")
def _gelu(graph: Graph) -> object:
    if graph.dice.chance(0.3):
        return graph.add("Gelu", [graph.value(FLOATS)], opset=2)
    return graph.add("Gelu", [graph.value(FLOATS)], {"approximation_mode": graph.dice.pick(("ERF", "TANH"))})


@TABLE.entry("Round")
def _round(graph: Graph) -> object:
    return graph.add(
        "Round", [graph.value(NUMBERS)], {"mode": graph.dice.pick(("half_to_even", "half_away_from_zero"))}
    )


@TABLE.entry("HardSigmoid", "Selu")
def _two_numbers(graph: Graph) -> object:
    one = graph.value(FLOATS)
    kind = name_of(one.element_type)
    if kind == "bf16":
        kind, one = "f32", graph.value(("f32",))
    numbers = [graph.number(value, kind) for value in graph.dice.pick(((0.2, 0.5), (1.67, 1.05), (1.0, 0.0)))]
    return graph.add(graph.dice.pick(("HardSigmoid", "Selu")), [one, *numbers])


@TABLE.entry("Swish")
def _swish(graph: Graph) -> object:
    one = graph.value(("f32", "f16", "f64"))
    beta = [graph.number(1.5, name_of(one.element_type))] if graph.dice.chance(0.6) else []
    return graph.add("Swish", [one, *beta], opset=4)


@TABLE.entry("PRelu")
def _prelu(graph: Graph) -> object:
    one = graph.value(FLOATS, least=1)
    shape = list(one.shape)
    width = shape[1] if len(shape) > 1 else shape[0]
    slope = graph.source([graph.dice.pick((1, width))], name_of(one.element_type), constant=0.8)
    return graph.add("PRelu", [one, slope])


@TABLE.entry("Select")
def _select(graph: Graph) -> object:
    one = graph.value(ALL)
    fitting = [
        other
        for other in graph.pool
        if name_of(other.element_type) == "boolean" and other.partial_shape == one.partial_shape
    ]
    shape = list(one.shape)
    if fitting and graph.dice.chance(0.7):
        chooser = graph.dice.pick(fitting)
    else:
        cut = shape[graph.dice.randint(0, len(shape)) :]
        chooser = graph.source(
            [size if graph.dice.chance(0.6) else 1 for size in cut], "boolean", constant=0.2
        )
    return graph.add("Select", [chooser, one, graph.mate(one)])


@TABLE.entry("Convert", "Convert again", "Convert once more")
def _convert(graph: Graph) -> object:
    kinds = NARROW if graph.dice.chance(0.12) else ALL
    out: Any = graph.add("Convert", [graph.value()], {"destination_type": graph.dice.pick(kinds)})
    if name_of(out[0].element_type) in SMALL:
        graph.pool.remove(out[0])
        out = graph.add("Convert", out, {"destination_type": graph.habits.main})
    return out


@TABLE.entry("ConvertLike")
def _convert_like(graph: Graph) -> object:
    return graph.add("ConvertLike", [graph.value(), graph.value()])


@TABLE.entry("ConvertPromoteTypes")
def _promote(graph: Graph) -> object:
    attributes = {"promote_unsafe": True, "pytorch_scalar_promotion": graph.dice.chance(0.5)}
    return graph.add("ConvertPromoteTypes", [graph.value(), graph.value()], attributes, 14)


@TABLE.entry("a chain")
def _chain(graph: Graph) -> object:
    """Add several in a row, which the CPU fuses into one kernel."""
    out = graph.value(("f32",))
    for _ in range(graph.dice.randint(2, 6)):
        kind = graph.dice.pick(
            ("Abs", "Relu", "Tanh", "Negative", "Sigmoid", "Floor", "Add", "Multiply", "Maximum")
        )
        operands = [out, graph.mate(out)] if kind in _BINARY else [out]
        out = graph.add(kind, operands, pooled=graph.dice.chance(0.2))[0]
    graph.pool.append(out)
    return out


@TABLE.entry("a constant")
def _constant(graph: Graph) -> object:
    out = graph.constant(graph.shape(), graph.kind())
    graph.pool.append(out)
    return out


@TABLE.entry("an input")
def _input(graph: Graph) -> object:
    return graph.source(constant=0.0)
