"""Drivers with one seeded defect each. The suite must fail on each of them, at the expected test."""

from tests.conformance.defects import commands, objects, waits
from tests.conformance.defects.defect import DEFECTS

__all__ = ["DEFECTS", "commands", "objects", "waits"]
