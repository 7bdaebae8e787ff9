"""A fault of OpenVINO's CPU runtime, and what softnpu does about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import openvino as ov

from softnpu.emulator.blob.container import GraphMeta
from softnpu.emulator.common.model_bodies import all_bodies


class Harm(StrEnum):
    """The worst that a fault does to a program."""

    WRONG_NUMBERS = "wrong numbers"
    SHOWS_MEMORY = "shows memory"
    """Results come from memory that is not the operation's."""
    WRITES_MEMORY = "writes memory"
    """It writes to memory that is not the operation's."""
    ENDS_PROCESS = "ends the process"
    REFUSES = "refuses"
    """A valid model or input is refused."""


class Stage(StrEnum):
    """Where a remedy acts."""

    MODEL = "model"
    """On the model as it was read."""
    BOUNDS = "bounds"
    """On the corrected model: checks of indices and sizes."""
    NUMBERS = "numbers"
    """On the model that has been rounded for its precision."""
    COMPILED = "compiled model"
    """On the compiled model, which is compiled again if it needs that."""
    PROPERTIES = "properties"
    """On the properties that every model is compiled with."""
    BINDING = "binding"
    """Where tensors are bound to the compiled model."""


class Build(NamedTuple):
    """What a model is compiled with."""

    core: ov.Core
    meta: GraphMeta
    properties: Mapping[str, str]


class Seen:
    """What a model and its bodies have: most remedies find nothing to do, and need not look for it."""

    def __init__(self, model: ov.Model) -> None:
        self._parts = [model, *all_bodies(model)]

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The types of their operations."""
        return frozenset(node.get_type_name() for part in self._parts for node in part.get_ops())

    @property
    def element_types(self) -> frozenset[str]:
        """The element types of their tensors."""
        return self._tensors[0]

    @property
    def may_be_empty(self) -> bool:
        """Whether a tensor has no elements, or an unknown number."""
        return self._tensors[1]

    @cached_property
    def _tensors(self) -> tuple[frozenset[str], bool]:
        element_types: set[str] = set()
        may_be_empty = False
        for part in self._parts:
            for node in part.get_ops():
                for output in node.outputs():
                    element_types.add(output.get_element_type().to_string())
                    may_be_empty = may_be_empty or _may_be_empty(output)
        return frozenset(element_types), may_be_empty


def _may_be_empty(output: Any) -> bool:
    return bool(output.get_partial_shape().is_dynamic or output.get_tensor().size == 0)


def _always(_: Seen) -> bool:
    return True


class Defect(msgspec.Struct, frozen=True):
    """A fault and its remedy.

    `operations`: the types concerned, each of which `apply` takes; empty: `apply` takes a model. On the
    stages `MODEL` and `BOUNDS` it returns whether it has changed something; on `NUMBERS` it takes a `Build`
    as well. On `COMPILED` it takes the model, the compiled model and its properties, and returns the
    properties to change before it is compiled again, or None if it need not be. On `PROPERTIES` it takes
    nothing and returns properties. `BINDING` is called by name: what binds tensors needs its result.
    `concerns` tells of a model whether `apply` may find anything there, besides `operations`.
    `condition` and `remedy` describe both in docs/defects.md. `seen_in` and `fixed_in` are versions of
    OpenVINO; `upstream` is the address of a thread there that reports, mends or brought the fault, if any.
    """

    id: str
    condition: str
    harm: Harm
    remedy: str
    stage: Stage
    apply: Callable[..., Any]
    operations: tuple[str, ...] = ()
    concerns: Callable[[Seen], bool] = _always
    seen_in: str = "2026.4"
    fixed_in: str = ""
    upstream: str = ""

    def may_be_in(self, seen: Seen) -> bool:
        """Whether a model may have it."""
        return not (self.operations and seen.kinds.isdisjoint(self.operations)) and self.concerns(seen)
