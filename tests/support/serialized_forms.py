"""Models in both serialised forms of format NGRAPH_LITE, as OpenVINO's plugin hands them to the driver."""

from __future__ import annotations

import struct

import openvino as ov

from softnpu.emulator.blob.weights import with_offsets
from softnpu.emulator.compiler.constants import serialize_ir
from softnpu.plugin.models.serializer import by_descriptor, no_copy_form

__all__ = ["by_descriptor", "copying_form", "no_copy_form"]


def copying_form(model: ov.Model, version: tuple[int, int]) -> bytearray:
    """Version, 2, size and XML, size and weights: all constants are copied."""
    indexed = model.clone()
    indexed.set_rt_info(True, "is_new_api")
    indexed.set_rt_info(True, "use_indices_for_io_metadata")
    xml, nodes, layers = serialize_ir(indexed, f"model '{model.get_friendly_name()}'")
    offsets: dict[tuple[int, int], int] = {}
    weights = bytearray()
    for node in nodes:
        if (node.address, node.length) not in offsets:
            offsets[node.address, node.length] = len(weights)
            weights += node.view()
    xml = with_offsets(xml, layers, [offsets[node.address, node.length] for node in nodes])
    header = struct.pack("<HHIQ", *version, 2, len(xml))
    return bytearray(header + xml + struct.pack("<Q", len(weights)) + weights)
