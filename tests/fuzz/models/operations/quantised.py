"""Quantisation, and types narrower than sixteen bits inside a model."""

from __future__ import annotations

from typing import Any

import openvino as ov

from tests.fuzz.models.graph import Graph, Skip
from tests.fuzz.models.operations.table import Table
from tests.fuzz.models.values import NARROW, SMALL, name_of

TABLE = Table()


def _fake(graph: Graph, one: ov.Output, width: list[int]) -> list[ov.Output]:
    """Quantise to random levels; `width`: the shape of ends that differ by channel, empty for none."""
    scale = graph.dice.pick((0.5, 1.0, 3.0, 12.7))
    signed = graph.dice.chance(0.6)
    begin = -scale if signed else 0.0
    levels = graph.dice.pick((256, 256, 255, 16, 2))
    ends = [graph.number([value] * 1, "f32") for value in (begin, scale, begin, scale)]
    if width and graph.dice.chance(0.4):
        ends = [graph.constant(width, "f32", (-5, -1) if at % 2 == 0 else (1, 5)) for at in range(4)]
    return graph.add("FakeQuantize", [one, *ends], {"levels": levels}, 1)


@TABLE.entry("FakeQuantize", "FakeQuantize again")
def _fake_quantize(graph: Graph) -> object:
    one = graph.value(("f32",))
    shape = list(one.shape)
    channels = [1, shape[1], *[1] * (len(shape) - 2)] if len(shape) > 1 else []
    return _fake(graph, one, channels)


def _input(one: Any, graph: Graph) -> Any:
    """Use no constants alone: with several streams the CPU device (2026.4) may fold them wrongly."""
    if not graph.varies(one):
        raise Skip("a constant")
    return one


@TABLE.entry("a quantised layer")
def _layer(graph: Graph) -> object:
    """Quantise an input and weights to 8 bits, the form that the CPU computes with integers."""
    one = _input(graph.value(("f32",), least=2, most=4, filled=True), graph)
    inner, width = list(one.shape)[-1], graph.dice.randint(1, 8)
    weights = graph.constant([width, inner], "i8")
    wide = graph.add("Convert", [weights], {"destination_type": "f32"}, pooled=False)
    scaled = graph.add("Multiply", [*wide, graph.number(0.02, "f32")], pooled=False)
    return graph.add("MatMul", [*_fake(graph, one, []), *scaled], {"transpose_b": True})


@TABLE.entry("a quantised convolution")
def _convolution(graph: Graph) -> object:
    one = _input(graph.value(("f32",), rank=4, filled=True), graph)
    channels, width = list(one.shape)[1], graph.dice.randint(1, 8)
    weights = graph.constant([width, channels, 1, 1], "i8")
    wide = graph.add("Convert", [weights], {"destination_type": "f32"}, pooled=False)
    scaled = graph.add("Multiply", [*wide, graph.constant([width, 1, 1, 1], "f32")], pooled=False)
    attributes = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1]}
    out = graph.add("Convolution", [*_fake(graph, one, []), *scaled], attributes, 1)
    return _fake(graph, out[0], []) if graph.dice.chance(0.5) else out


@TABLE.entry("FakeConvert")
def _fake_convert(graph: Graph) -> object:
    one = graph.value(("f32", "f16"))
    kind = name_of(one.element_type)
    shift = [graph.number(0.5, kind)] if graph.dice.chance(0.4) else []
    kinds = {"destination_type": graph.dice.pick(("f8e4m3", "f8e5m2"))}
    return graph.add("FakeConvert", [one, graph.number(2.0, kind), *shift], kinds, 13)


@TABLE.entry("there and back")
def _there_and_back(graph: Graph) -> object:
    """Convert to a smaller type and back: the CPU may drop the pair."""
    one = graph.value(("f32", "f16", "i32", "i64"))
    small = graph.dice.pick((*NARROW, "i8", "u8", "f16", "bf16", "i32", "boolean"))
    there = graph.add("Convert", [one], {"destination_type": small}, pooled=False)
    return graph.add("Convert", there, {"destination_type": name_of(one.element_type)})


@TABLE.entry("a packed constant")
def _packed(graph: Graph) -> object:
    packed = graph.constant(graph.shape(least=1, most=4), graph.dice.pick(SMALL))
    return graph.add("Convert", [packed], {"destination_type": graph.dice.pick(("f32", "f16", "i32", "i8"))})
