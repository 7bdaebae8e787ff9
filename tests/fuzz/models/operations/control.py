"""Control flow: If, Loop and TensorIterator with small bodies from the same catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from tests.fuzz.models.graph import Graph, Habits, Skip
from tests.fuzz.models.operations.table import Table
from tests.fuzz.models.values import name_of

TABLE = Table()
_STEPS = ("Abs", "Relu", "Negative", "Tanh", "Sigmoid", "Add", "Multiply", "Maximum", "nothing")


def _body(graph: Graph, likes: Sequence[ov.Output]) -> tuple[Graph, list[Any], Any]:
    """Return a graph with a parameter for each of `likes`, and a value of the first one's type and shape."""
    habits = Habits(graph.habits.main, 0.0, False, graph.habits.wild, inner=True)
    inner = Graph(
        graph.dice, habits, prefix=f"{graph.prefix}body{len(graph.built)}_{graph.dice.randrange(1000)}/"
    )
    for like in likes:
        made = opset13.parameter(list(like.shape), like.element_type)
        made.set_friendly_name(f"{inner.prefix}in.{len(inner.parameters)}")
        inner.parameters.append(made)
    value = inner.parameters[0].output(0)
    for _ in range(graph.dice.randint(0, 3)):
        kind = graph.dice.pick(_STEPS)
        if kind == "nothing":
            continue
        fitting = [
            one.output(0) for one in inner.parameters if one.output(0).partial_shape == value.partial_shape
        ]
        fitting = [one for one in fitting if one.element_type == value.element_type]
        if kind in ("Add", "Multiply", "Maximum"):
            other = (
                graph.dice.pick(fitting)
                if fitting
                else inner.constant(list(value.shape), name_of(value.element_type))
            )
            value = inner.add(kind, [value, other])[0]
        else:
            value = inner.add(kind, [value])[0]
    return inner, inner.parameters, value


def _result(inner: Graph, value: Any) -> Any:
    made = opset13.result(value)
    inner._name(made)
    return made


@TABLE.entry("If", "If again")
def _if(graph: Graph) -> object:
    one = graph.value(("f32", "f16", "i32"), filled=True)
    chooser = graph.source([] if graph.dice.chance(0.6) else [1], "boolean", constant=0.5)
    node = opset13.if_op(chooser)
    bodies = []
    for _ in range(2):
        inner, parameters, value = _body(graph, [one])
        bodies.append((ov.Model([_result(inner, value)], parameters), parameters))
    node.set_then_body(bodies[0][0])
    node.set_else_body(bodies[1][0])
    try:
        node.set_input(one, bodies[0][1][0], bodies[1][1][0])
        node.set_output(node.get_then_body().results[0], node.get_else_body().results[0])
    except RuntimeError as error:
        raise Skip(f"If: {error}") from error
    return graph.adopt(node, "If")


@TABLE.entry("Loop", "Loop again")
def _loop(graph: Graph) -> object:
    one = graph.value(("f32", "i32"), filled=True)
    other = graph.mate(one, broadcast=False)
    inner, parameters, value = _body(graph, [one, other])
    goes_on = inner.number(np.array(not graph.dice.chance(0.15)), "boolean")
    results = [_result(inner, goes_on), _result(inner, value)]
    trips = graph.source(
        [], graph.dice.pick(("i32", "i64")), (0 if graph.dice.chance(0.1) else 1, 4), constant=0.6
    )
    node = opset13.loop(trips, graph.number(np.array(True), "boolean"))
    try:
        node.set_function(ov.Model(results, parameters))
        node.set_special_body_ports([-1, 0])
        node.set_merged_input(parameters[0], one, results[1].output(0))
        node.set_invariant_input(parameters[1], other)
        node.get_iter_value(results[1].output(0), -1)
        if graph.dice.chance(0.4) and len(one.shape):
            node.get_concatenated_slices(results[1].output(0), 0, 1, 1, -1, 0)
        node.constructor_validate_and_infer_types()
    except RuntimeError as error:
        raise Skip(f"Loop: {error}") from error
    return graph.adopt(node, "Loop")


@TABLE.entry("TensorIterator")
def _iterator(graph: Graph) -> object:
    one = graph.value(("f32",), least=2, most=4, filled=True)
    shape = list(one.shape)
    axis = graph.dice.randrange(len(shape))
    slice_shape = [*shape[:axis], 1, *shape[axis + 1 :]]
    carried = graph.source(slice_shape, "f32")
    part = opset13.parameter(slice_shape, ov.Type.f32)
    inner, parameters, value = _body(graph, [carried, part.output(0)])
    results = [_result(inner, value)]
    node = opset13.tensor_iterator()
    backwards = graph.dice.chance(0.3)
    try:
        node.set_body(ov.Model(results, parameters))
        if backwards:
            node.set_sliced_input(parameters[1], one, -1, -1, 1, 0, axis)
        else:
            node.set_sliced_input(parameters[1], one, 0, 1, 1, -1, axis)
        node.set_merged_input(parameters[0], carried, results[0].output(0))
        node.get_iter_value(results[0].output(0), -1)
        if backwards:
            node.get_concatenated_slices(results[0].output(0), -1, -1, 1, 0, axis)
        else:
            node.get_concatenated_slices(results[0].output(0), 0, 1, 1, -1, axis)
        node.constructor_validate_and_infer_types()
    except RuntimeError as error:
        raise Skip(f"TensorIterator: {error}") from error
    return graph.adopt(node, "TensorIterator")
