"""Compute the indices of an AdaptiveMaxPool in 32 bits: OpenVINO compiles none with indices of i64."""

from __future__ import annotations

from typing import Any

from openvino import opset13 as ops

from softnpu.emulator.common.graph_edits import put_behind


def adaptive_max_pool(node: Any) -> bool:
    """Convert the indices to i64 behind the operation, where i64 was asked for."""
    if node.get_attributes()["index_element_type"] != "i64":
        return False
    node.set_attribute("index_element_type", "i32")
    put_behind(node.output(1), lambda indices: ops.convert(indices, "i64"), "indices")
    return True
