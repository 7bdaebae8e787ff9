"""Apply the remedies of the table to a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

import openvino as ov

from softnpu.emulator.common.model_bodies import all_bodies
from softnpu.emulator.openvino.defects.defect import Build, Defect, Seen, Stage
from softnpu.emulator.openvino.defects.table import DEFECTS


def correct(model: ov.Model) -> bool:
    """Replace what OpenVINO computes wrongly in a model that was just read, and in its bodies.

    Returns whether it had something of the kind.
    """
    return _apply(model, Stage.MODEL, Seen(model)).is_changed


def correct_and_guard(model: ov.Model) -> None:
    """Do so, and keep the model and its bodies inside of their memory."""
    _apply(model, Stage.BOUNDS, _apply(model, Stage.MODEL, Seen(model)).seen)


def settle(model: ov.Model, build: Build) -> None:
    """Prepare the numbers of a model that has been rounded for its precision."""
    for defect in DEFECTS:
        if defect.stage is Stage.NUMBERS:
            defect.apply(model, build)


def properties() -> dict[str, str]:
    """Return the properties that every model is compiled with on this host, besides its own."""
    return {
        name: value
        for defect in DEFECTS
        if defect.stage is Stage.PROPERTIES
        for name, value in defect.apply().items()
    }


def recompiled(
    core: ov.Core, model: ov.Model, compiled: ov.CompiledModel, properties: Mapping[str, str]
) -> tuple[ov.CompiledModel, Mapping[str, str]]:
    """Compile a model again for each remedy that a compiled model shows to be needed.

    `compiled` was compiled with `properties`. Returns the last one, and its properties.
    """
    for defect in DEFECTS:
        if defect.stage is Stage.COMPILED:
            changed = defect.apply(model, compiled, properties)
            if changed is not None:
                properties = {**properties, **changed}
                compiled = core.compile_model(model, "CPU", properties)
    return compiled, properties


class _Applied(NamedTuple):
    """Whether a model was changed, and what it has now."""

    is_changed: bool
    seen: Seen


def _apply(model: ov.Model, stage: Stage, seen: Seen) -> _Applied:
    found = False
    of_stage = [defect for defect in DEFECTS if defect.stage is stage]
    for are_of_operations, defects in groupby(of_stage, lambda defect: bool(defect.operations)):
        if are_of_operations:
            needed = [defect for defect in defects if defect.may_be_in(seen)]
            if needed and _walk(model, needed):
                found, seen = True, Seen(model)
            continue
        for defect in defects:
            if defect.may_be_in(seen) and defect.apply(model):
                found, seen = True, Seen(model)
    return _Applied(found, seen)


def _walk(model: ov.Model, defects: list[Defect]) -> bool:
    """Apply the first of these remedies that an operation needs, to each operation once."""
    remedies: dict[str, list[Defect]] = {}
    for defect in defects:
        for operation in defect.operations:
            remedies.setdefault(operation, []).append(defect)
    found = False
    for part in [model, *all_bodies(model)]:
        if list(_changed(part, remedies)):
            part.validate_nodes_and_infer_types()
            found = True
    return found


def _changed(part: ov.Model, remedies: dict[str, list[Defect]]) -> Iterator[Any]:
    for node in part.get_ordered_ops():
        if any(defect.apply(node) for defect in remedies.get(node.get_type_name(), ())):
            yield node
