"""A minimal model for each fault of OpenVINO that has no report in docs/upstream, with its right results."""

from __future__ import annotations

from tests.openvino.faults import bounds, moved, results
from tests.openvino.faults.fault import Fault

FAULTS: dict[str, Fault] = {**moved.FAULTS, **results.FAULTS, **bounds.FAULTS}

__all__ = ["FAULTS"]
