"""Drivers with one seeded defect each. The suite has to fail on every one of them, at the expected test."""

from __future__ import annotations

from tests.conformance.defects import commands, events, fences, graphs, handles, lists, memory, queues
from tests.conformance.defects.defect import Defect

DEFECTS: dict[str, Defect] = {
    defect.name: defect
    for module in (fences, events, queues, lists, commands, memory, graphs, handles)
    for defect in module.DEFECTS
}
