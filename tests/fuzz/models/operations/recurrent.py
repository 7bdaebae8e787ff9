"""Recurrent cells and sequences."""

from __future__ import annotations

from typing import Any

from tests.fuzz.models.graph import Graph
from tests.fuzz.models.operations.table import Table

TABLE = Table()
_ACTIVATIONS = ("sigmoid", "tanh", "relu")


def _attributes(graph: Graph, hidden: int, count: int) -> dict[str, Any]:
    usual = {1: ["tanh"], 2: ["sigmoid", "tanh"], 3: ["sigmoid", "tanh", "tanh"]}[count]
    chosen = usual if graph.dice.chance(0.8) else [graph.dice.pick(_ACTIVATIONS) for _ in usual]
    return {"hidden_size": hidden, "activations": chosen, "clip": graph.dice.pick((0.0, 0.0, 1.5))}


def _cell(kind: str, gates: int, activations: int, opset: int) -> None:
    def add(graph: Graph) -> object:
        one = graph.value(("f32",), rank=2, filled=True)
        batch, width = list(one.shape)
        hidden = graph.dice.randint(1, 5)
        attributes = _attributes(graph, hidden, activations)
        states = [graph.source([batch, hidden], "f32") for _ in range(2 if kind == "LSTMCell" else 1)]
        extra = 0
        if kind == "GRUCell":
            attributes["linear_before_reset"] = graph.dice.chance(0.5)
            extra = int(attributes["linear_before_reset"])
        weights = [
            graph.constant([gates * hidden, width], "f32"),
            graph.constant([gates * hidden, hidden], "f32"),
            graph.constant([(gates + extra) * hidden], "f32"),
        ]
        return graph.add(kind, [one, *states, *weights], attributes, opset)

    TABLE[kind] = add


def _sequence(kind: str, gates: int, activations: int) -> None:
    def add(graph: Graph) -> object:
        one = graph.value(("f32",), rank=3, filled=True)
        batch, steps, width = list(one.shape)
        hidden = graph.dice.randint(1, 4)
        direction = graph.dice.pick(("forward", "reverse", "bidirectional"))
        ways = 2 if direction == "bidirectional" else 1
        attributes = {**_attributes(graph, hidden, activations), "direction": direction}
        if ways == 2:
            attributes["activations"] = attributes["activations"][:activations]
        extra = 0
        if kind == "GRUSequence":
            attributes["linear_before_reset"] = graph.dice.chance(0.5)
            extra = int(attributes["linear_before_reset"])
        states = [
            graph.source([batch, ways, hidden], "f32") for _ in range(2 if kind == "LSTMSequence" else 1)
        ]
        bounds = (steps, steps) if graph.dice.chance(0.6) else (1, steps)
        lengths = graph.source([batch], graph.dice.pick(("i32", "i64")), bounds)
        weights = [
            graph.constant([ways, gates * hidden, width], "f32"),
            graph.constant([ways, gates * hidden, hidden], "f32"),
            graph.constant([ways, (gates + extra) * hidden], "f32"),
        ]
        return graph.add(kind, [one, *states, lengths, *weights], attributes, 5)

    TABLE[kind] = add


_cell("LSTMCell", 4, 3, 4)
_cell("GRUCell", 3, 2, 3)
_cell("RNNCell", 1, 1, 1)
_sequence("LSTMSequence", 4, 3)
_sequence("GRUSequence", 3, 2)
_sequence("RNNSequence", 1, 1)
