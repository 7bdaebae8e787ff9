"""`python -m tests.openvino.plain ID`: print what is wrong with a model on OpenVINO's CPU device alone."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import openvino as ov

from tests.openvino.faults import FAULTS


def _compiled(model: ov.Model, properties: Mapping[str, str]) -> Any:
    return ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", **properties})


if __name__ == "__main__":
    print(FAULTS[sys.argv[1]](_compiled))
