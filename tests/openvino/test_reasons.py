"""What is told of OpenVINO's exceptions, and of the system's."""

from __future__ import annotations

import errno

import pytest

from softnpu.emulator.compiler.error_info import system_error
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


def test_a_full_disk_is_not_only_a_lack_of_memory() -> None:
    told = str(system_error("blob", OSError(errno.ENOSPC, "No space left on device")))
    assert (
        told
        == "blob: No space left on device; expected free memory, and room in the file system of the output"
    )
    assert str(system_error("blob", OSError(errno.ENOMEM, "no memory"))).endswith("expected free memory")
