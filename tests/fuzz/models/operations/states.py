"""States: a variable that is read, changed and assigned, of opset 3 and 6."""

from __future__ import annotations

from typing import Any

import openvino as ov

from tests.fuzz.models.graph import Graph, Skip
from tests.fuzz.models.operations.table import Table
from tests.fuzz.models.values import name_of

TABLE = Table()
_MOST = 3
_KINDS = ("f32", "f32", "f32", "f16", "bf16", "i32", "u8", "i8", "boolean", "i64")
_NAMES = ("state", "a variable", "variable/ü")


class State:
    """A new variable of a graph, initialised to `initial` (None: zeros)."""

    def __init__(self, graph: Graph, initial: ov.Output | None, shape: list[int], kind: str) -> None:
        if graph.habits.inner or len(graph.variables) >= _MOST:
            raise Skip("no (further) state here")
        self._graph = graph
        self._name = f"{graph.dice.pick(_NAMES)}{len(graph.variables)}"
        self._opset = 3 if initial is not None and graph.dice.chance(0.2) else 6
        attributes: dict[str, Any] = {"variable_id": self._name}
        if self._opset == 6:
            attributes.update(variable_type=kind, variable_shape=ov.PartialShape(shape))
        given = [] if initial is None else [initial]
        self.value = graph.add("ReadValue", given, attributes, self._opset)[0]
        graph.variables.append(self._name)

    def assign(self, after: ov.Output) -> None:
        """Set the state after this inference."""
        out = self._graph.add("Assign", [after], {"variable_id": self._name}, self._opset, pooled=False)
        self._graph.sinks.append(out[0].get_node())


@TABLE.entry("a state")
def _state(graph: Graph) -> object:
    """Add new = f(old, x): most are also read by others."""
    one = graph.value(_KINDS, filled=True)
    kind, shape = name_of(one.element_type), list(one.shape)
    way = graph.dice.randrange(10)
    initial = (
        None
        if way < 2
        else graph.constant(shape, kind)
        if way < 5
        else graph.equal_bytes(shape, kind)
        if way < 7
        else graph.source(shape, kind, constant=0.0)
    )
    state = State(graph, initial, shape, kind)
    operation = (
        "LogicalXor" if kind == "boolean" else graph.dice.pick(("Add", "Multiply", "Maximum", "Subtract"))
    )
    after = graph.add(operation, [state.value, one] if graph.dice.chance(0.8) else [state.value] * 2)[0]
    if graph.dice.chance(0.1):
        after = one if graph.dice.chance(0.5) else state.value
    state.assign(after)
    return after


@TABLE.entry("a state that is converted")
def _converted(graph: Graph) -> object:
    """Convert a state to another type and back, which the CPU may drop."""
    one = graph.value(("f32",), filled=True)
    shape = list(one.shape)
    state = State(graph, graph.constant(shape, "f32"), shape, "f32")
    small = graph.dice.pick(("f8e4m3", "f8e5m2", "f16", "bf16", "i32", "u8", "i8", "i64"))
    there = graph.add("Convert", [state.value], {"destination_type": small}, pooled=False)
    graph.add("Convert", there, {"destination_type": "f32"})
    after = graph.add("Add", [state.value, one], pooled=graph.dice.chance(0.5))[0]
    state.assign(after)
    return after
