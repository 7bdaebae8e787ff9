"""A minimal model for each row of the table of OpenVINO's faults, with its right results by numpy."""

from __future__ import annotations

from tests.openvino.faults import bounds, moved, numbers, results
from tests.openvino.faults.fault import Fault

FAULTS: dict[str, Fault] = {**moved.FAULTS, **results.FAULTS, **bounds.FAULTS, **numbers.FAULTS}

__all__ = ["FAULTS"]
