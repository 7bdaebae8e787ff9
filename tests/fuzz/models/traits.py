"""The traits of a case that the list of known differences needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov

from softnpu.emulator.common.model_bodies import all_bodies
from tests.fuzz.models import openvino_faults as faults
from tests.fuzz.models.case import Case
from tests.fuzz.models.records import Answer
from tests.fuzz.models.values import name_of

_REFUSED_STATES = ("f64", "i64", "i16", "u16", "u32", "u64")
"""Types of states that OpenVINO's CPU device does not have."""
NO_BATCH_LEFT = "an output without dimensions in the model of one row"
"""OpenVINO's plugin ends the process (docs/native.md, Limits)."""


@dataclass(frozen=True)
class Traits:
    """A case's traits.

    `after_states`: the outputs that depend on a state. `beside_batch`: those independent of the inputs whose
    layouts name a batch, or that keep their first dimension if that of all inputs is 1. `after_nans`: those
    that depend on a sorted Unique of floats, if an input has a NaN. `after_faults`: those that depend on an
    operation that the CPU device may compute wrongly. `outside`: the steps with a shape that
    the model does not allow. `rows`: axis and length of samples in all inputs and outputs, if OpenVINO's
    plugin takes their first dimensions for a batch.
    """

    words: frozenset[str]
    after_states: frozenset[int]
    beside_batch: frozenset[int]
    outside: frozenset[int]
    after_nans: frozenset[int]
    after_faults: frozenset[int]
    rows: Mapping[str, object]

    def __contains__(self, word: object) -> bool:
        return word in self.words


def traits_of(case: Case) -> Traits:
    """Return the traits of a case."""
    found: set[str] = set()
    nodes = case.model.get_ordered_ops()
    if case.stateful:
        found.add("states")
        kinds = {name_of(node.get_element_type()) for node in nodes if node.get_type_name() == "ReadValue"}
        if kinds & set(_REFUSED_STATES):
            found.add("states that the CPU device refuses")
    parts = [case.model, *all_bodies(case.model)]
    if any(node.get_type_name() == "FakeQuantize" for part in parts for node in part.get_ops()):
        found.add("quantised")
    if faults.computes_constants(case.model):
        found.add("computed constants")
    if any(_is_guarded(node) for part in parts for node in part.get_ops()):
        found.add("guarded recurrence")
    ports = [*case.model.inputs, *case.model.outputs]
    ports = [port for port in ports if port.partial_shape.rank.is_static]
    if any(dimension.get_max_length() < 0 for port in ports for dimension in port.partial_shape):
        found.add("open without a bound")
    readers = [node.output(0) for node in nodes if node.get_type_name() == "ReadValue"]
    ranks = [port.partial_shape.rank for port in (*ports, *readers)]
    if any(rank.is_static and rank.get_length() > 5 for rank in ranks):
        found.add("more than 5 dimensions")
    for parameter in case.model.get_parameters():
        axis = (
            ov.layout_helpers.batch_idx(parameter.layout)
            if ov.layout_helpers.has_batch(parameter.layout)
            else None
        )
        if axis:
            found.add("a batch elsewhere than in the first dimension")
        if axis is not None and parameter.get_partial_shape()[axis].is_dynamic:
            found.add("an open batch that a layout names")
    batched = {
        one.get_instance_id()
        for one in case.model.get_parameters()
        if ov.layout_helpers.has_batch(one.layout)
    }
    reads = {node.get_instance_id() for node in nodes if node.get_type_name() == "ReadValue"}
    outputs = frozenset(range(len(case.model.outputs)))
    beside = outputs - _after(case, nodes, batched) if batched else frozenset()
    after_states = _after(case, nodes, reads)
    uniques = {node.get_instance_id() for node in nodes if _sorts_nans(node)}
    after_nans = _after(case, nodes, uniques) if uniques and _has_nans(case) else frozenset()
    wrong = {node.get_instance_id() for node in nodes if faults.is_wrong(node)}
    after_faults = _after(case, nodes, wrong) if wrong else frozenset()
    rows = _rows(case)
    of_one = _of_one_row(case) if rows else []
    beside |= {at for at, shape in enumerate(of_one) if not len(shape) or shape[0] != ov.Dimension(1)}
    if any(not len(shape) for shape in of_one):
        found.add(NO_BATCH_LEFT)
    return Traits(frozenset(found), after_states, beside, _outside(case), after_nans, after_faults, rows)


def unlike_declared(case: Case, right: Answer) -> frozenset[int]:
    """Return the steps in which the CPU device gives an output an undeclared shape."""
    if right.refused is not None:
        return frozenset()
    declared = [port.partial_shape for port in case.model.outputs]
    return frozenset(
        at
        for at, step in enumerate(right.steps)
        if isinstance(step, list)
        and any(not _allowed(shape, one.shape) for shape, one in zip(declared, step, strict=True))
    )


def _rows(case: Case) -> dict[str, object]:
    shapes = [port.partial_shape for port in (*case.model.inputs, *case.model.outputs)]
    if case.stateful or not case.model.inputs or any(shape.is_dynamic or not len(shape) for shape in shapes):
        return {}
    if len({shape[0].get_length() for shape in shapes}) > 1 or shapes[0][0].get_length() < 2:
        return {}
    return {"inputs": [(0, 1)] * len(case.model.inputs), "outputs": [(0, 1)] * len(case.model.outputs)}


def _of_one_row(case: Case) -> list[Any]:
    """Return the shapes of all outputs of the one-row model: one may have lost its dimensions."""
    model = case.model.clone()
    try:
        model.reshape({at: ov.PartialShape([1, *port.shape[1:]]) for at, port in enumerate(model.inputs)})
    except RuntimeError:
        return []
    return [port.partial_shape for port in model.outputs]


def _is_guarded(node: Any) -> bool:
    """Return whether it is a sequence, or a clipping cell, with an open inner dimension."""
    kind = node.get_type_name()
    clips = kind.endswith("Cell") and node.get_attributes().get("clip", 0) > 0
    if not clips and not kind.endswith("Sequence"):
        return False
    shapes = [node.get_input_partial_shape(position) for position in (0, 1)]
    return any(shape.rank.is_static and len(shape) and shape[-1].is_dynamic for shape in shapes)


def _sorts_nans(node: Any) -> bool:
    """Return whether it is a sorted Unique of floats, which NaNs confuse."""
    return (
        node.get_type_name() == "Unique"
        and bool(node.get_attributes()["sorted"])
        and node.get_input_element_type(0).is_real()
    )


def _has_nans(case: Case) -> bool:
    return any(
        one.element_type.is_real() and one.size and np.isnan(np.asarray(one.data, np.float64)).any()
        for step in case.steps
        for one in step
    )


def _after(case: Case, nodes: Sequence[Any], begin: set[int]) -> frozenset[int]:
    """Return the outputs that depend on nodes, by their instances."""
    reached = set(begin)
    for node in nodes:  # in an order with inputs first
        sources = {port.get_node().get_instance_id() for port in node.input_values()}
        if sources & reached:
            reached.add(node.get_instance_id())
    results = case.model.get_results()
    return frozenset(index for index, one in enumerate(results) if one.get_instance_id() in reached)


def _outside(case: Case) -> frozenset[int]:
    allowed = [port.partial_shape for port in case.model.inputs]
    return frozenset(
        at
        for at, step in enumerate(case.steps)
        if any(not _allowed(shape, list(one.shape)) for shape, one in zip(allowed, step, strict=True))
    )


def _allowed(declared: Any, shape: Sequence[int]) -> bool:
    if declared.rank.is_dynamic:
        return True
    if len(declared) != len(shape):
        return False
    return all(
        one.get_min_length() <= size and (one.get_max_length() < 0 or size <= one.get_max_length())
        for one, size in zip(declared, shape, strict=True)
    )


__all__ = ["NO_BATCH_LEFT", "Traits", "traits_of", "unlike_declared"]
