"""What is told of OpenVINO's exceptions."""

from __future__ import annotations

import pytest

from softnpu.emulator.openvino import errors

_CPU = "Caught exception: Exception from src/plugins/intel_cpu/src/node.cpp:794:\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "Exception from src/inference/src/cpp/core.cpp:132:\nUnable to read the model: x.\n",
            "Unable to read the model: x",
        ),
        (
            f"{_CPU}[CPU] Concat node with name 'c' has wrong shapes",
            "[CPU] Concat node with name 'c' has wrong shapes",
        ),
        (
            f"While validating node 'opset1::Add a (b) -> ()' with friendly_name 'sum':\n{_CPU}no room",
            "operation 'sum' (Add): no room",
        ),
    ],
)
def test_locations_in_openvino_s_source_are_left_out(text: str, told: str) -> None:
    assert errors.reason(RuntimeError(text)) == told
