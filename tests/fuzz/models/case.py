"""A case: a model and the inputs of some inferences, derived from seed and number alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from tests.fuzz.dice import Dice
from tests.fuzz.models import edits
from tests.fuzz.models.graph import Graph, Habits, Skip
from tests.fuzz.models.lengths import make_steps, opened
from tests.fuzz.models.names import name_all, name_unnamed
from tests.fuzz.models.operations import FAMILIES, WEIGHTS
from tests.fuzz.models.values import SMALL, bytes_of, name_of, of_array

_MOST_OUTPUTS = 7
_WIDE = ("i64", "u64", "f64")
"""Types that OpenVINO's CPU device computes in 32 bits, but must pass through unchanged."""
_LONG = 0.06
"""The share of the models that take milliseconds: only such inferences begin before their turn."""


@dataclass(frozen=True)
class Key:
    """The identity of a case: the seed of the run, its number, and the edits by shrinking."""

    seed: str
    number: int
    edits: tuple[edits.Edit, ...] = ()

    def __str__(self) -> str:
        return f"{self.seed}:{self.number}"


@dataclass
class Case:
    """A model with its inputs: `steps` has a tensor for every input of each inference."""

    key: Key
    model: ov.Model
    steps: list[list[ov.Tensor]]
    built: dict[str, int] = field(default_factory=dict)

    @property
    def stateful(self) -> bool:
        """Whether inferences depend on previous ones."""
        return bool(self.model.get_sinks()) or any(
            node.get_type_name() == "ReadValue" for node in self.model.get_ordered_ops()
        )

    @property
    def dynamic(self) -> bool:
        """Whether an input has an open dimension."""
        return any(port.partial_shape.is_dynamic for port in self.model.inputs)


def make(key: Key) -> Case:
    """Make the case of a key: the same in every process."""
    dice = Dice("models", key.seed, key.number)
    graph = _graph(dice)
    model = _model(dice, graph)
    _layouts(dice, model)
    sizes = opened(dice, model)
    if not model.is_dynamic() and Dice("long", key.seed, key.number).chance(_LONG):
        _prolong(model)
    # by their original names, before renaming: indices must stay in their ranges
    limits = [graph.bounds.get(port.get_node().get_friendly_name()) for port in model.inputs]
    name_unnamed(model)
    name_all(dice, model)
    steps = make_steps(dice, model, limits, sizes)
    case = Case(key, model, steps, dict(graph.built))
    for number, edit in enumerate(key.edits):
        changed = edits.apply(edit, case.model, case.steps, Dice("edit", key.seed, key.number, number))
        case = Case(key, *changed, case.built)
    return case


@lru_cache(maxsize=4)
def seen(key: Key) -> Case:
    """Return a key's case, read-only because it is shared."""
    return make(key)


def of_model(key: Key, model: ov.Model) -> Case:
    """Return a case of a hand-made model, with inputs derived from the key."""
    dice = Dice("model", key.seed, key.number)
    return Case(key, model, make_steps(dice, model, [None] * len(model.inputs), {}))


def _graph(dice: Dice) -> Graph:
    graph = Graph(dice, Habits.rolled(dice))
    for _ in range(dice.randint(1, 3)):
        graph.source(constant=0.0)
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    if dice.chance(0.25):  # few families, many operations of each
        names = dice.sample(names, 2)
        weights = [1] * 2
    wanted = dice.pick((1, 1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 12))
    for _ in range(3 * wanted):
        table = FAMILIES[dice.choices(names, weights)[0]]
        before = len(graph.built)
        try:
            table[dice.pick(list(table))](graph)
        except Skip:
            continue
        if len(graph.built) >= before:
            wanted -= 1
        if not wanted:
            break
    return graph


def _read(graph: Graph) -> set[Any]:
    """Return the values that something reads."""
    return {port for port in graph.pool if port.get_target_inputs()}


def _model(dice: Dice, graph: Graph) -> ov.Model:
    """Build a model with some of the graph's values as outputs: unread ones, and others."""
    read = _read(graph)
    shown = [port for port in graph.pool if port not in read and name_of(port.element_type) not in SMALL]
    shown = [port for port in shown if port.get_node().get_type_name() not in ("Parameter", "Constant")]
    dice.shuffle(shown)
    shown = shown[: _MOST_OUTPUTS - 2]
    if dice.chance(0.3):
        shown += [dice.pick(graph.pool) for _ in range(dice.randint(1, 2))]
    if dice.chance(0.08) and graph.parameters:
        shown.append(dice.pick(graph.parameters).output(0))
    wide = [one for one in graph.parameters if name_of(one.get_element_type()) in _WIDE]
    if wide and dice.chance(0.3):
        shown.append(dice.pick(wide).output(0))
    if dice.chance(0.06):
        shown.append(graph.constant(graph.shape(), graph.kind()))
    if dice.chance(0.08) and shown:
        shown.append(dice.pick(shown))
    if not shown:
        shown = [dice.pick(graph.pool)]
    results = []
    for number, port in enumerate(shown):
        result = opset13.result(port)
        result.set_friendly_name(f"Result.{number}")
        results.append(result)
    used = _reachable([*results, *graph.sinks])
    parameters = [one for one in graph.parameters if one.get_instance_id() in used]
    if dice.chance(0.1):
        parameters = list(graph.parameters)  # some that nothing reads
    return ov.Model(results, graph.sinks, parameters, f"model {dice.randrange(1000)}")


def _reachable(ends: Iterable[Any]) -> set[Any]:
    """Return the instances of all nodes that `ends` need."""
    found: set[Any] = set()
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        instance = node.get_instance_id()
        if instance not in found:
            found.add(instance)
            waiting += [port.get_node() for port in node.input_values()]
    return found


def _layouts(dice: Dice, model: ov.Model) -> None:
    """Set the batch layout of some inputs."""
    if dice.chance(0.15):
        for parameter in model.get_parameters():
            rank = len(parameter.get_output_shape(0))
            if rank and dice.chance(0.8):
                parameter.set_layout(
                    ov.Layout("N" + "?" * (rank - 1) if dice.chance(0.9) else "?" * (rank - 1) + "N")
                )


def _prolong(model: ov.Model) -> None:
    """Add an input, a million numbers to compute of it, and an output that shows some of them."""
    given = opset13.parameter([1, 8, 1], ov.Type.f32)
    value = opset13.multiply(
        given, opset13.constant(np.linspace(-2, 2, 512 * 256, dtype=np.float32).reshape(512, 1, 256))
    )
    for operation in (opset13.sin, opset13.erf, opset13.sin, opset13.erf):
        value = operation(value)
    begin, end, step = (opset13.constant([number]) for number in (255, 256, 1))
    shown = opset13.slice(value, begin, end, step, opset13.constant([2]))
    model.add_parameters([given])
    model.add_results([opset13.result(shown)])


def described(case: Case) -> list[str]:
    """Describe the model in lines for people."""
    lines = []
    for node in case.model.get_ordered_ops():
        inputs = ", ".join(port.get_node().get_friendly_name()[:40] for port in node.input_values())
        outputs = ", ".join(f"{name_of(port.element_type)}{port.partial_shape}" for port in node.outputs())
        version = node.get_type_info().version_id
        lines.append(
            f"{node.get_friendly_name()[:40]} = {version}.{node.get_type_name()}({inputs}) -> {outputs}"
        )
    return lines


def size_of(case: Case) -> tuple[int, int, int]:
    """Return a case's size: computing nodes, all nodes, elements of its inputs."""
    nodes = case.model.get_ordered_ops()
    working = [node for node in nodes if node.get_type_name() not in ("Parameter", "Constant", "Result")]
    elements = sum(math.prod(one.shape) + len(one.shape) for step in case.steps for one in step)
    return len(working), len(nodes), elements


def content(steps: Sequence[Sequence[ov.Tensor]]) -> list[list[bytes]]:
    """Return the numbers of all inputs."""
    return [[bytes_of(one) for one in step] for step in steps]


__all__ = ["Case", "Key", "content", "described", "make", "of_array", "of_model", "seen", "size_of"]
