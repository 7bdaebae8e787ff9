"""The constants of a model in memory, and the XML of a model without writing its weights anywhere.

`openvino.serialize` writes to named files. The XML goes to a memory file through a link with the name
that OpenVINO insists on; the weights go to /dev/null, so offsets in that XML mean nothing (its position is
always 0). Its `Const` layers come in the order of `constant_nodes`, which is how they get real ones.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openvino as ov

from softnpu.emulator.interface import linux
from softnpu.emulator.interface.result import ZeResult, refuse

_BODIES = {"If": 2, "Loop": 1, "TensorIterator": 1}


@dataclass(frozen=True)
class ConstantNode:
    """A constant of a model: where its bytes lie in this process, as long as the model lives."""

    name: str
    address: int
    length: int

    def view(self) -> memoryview:
        """The bytes, without a copy."""
        if not self.length:
            return memoryview(b"")
        return memoryview((ctypes.c_ubyte * self.length).from_address(self.address)).cast("B")


def constant_nodes(model: ov.Model, subject: str) -> list[ConstantNode]:
    """The constants in the order in which OpenVINO serialises them, those of nested bodies included.

    Refuses strings with `ERROR_UNSUPPORTED_FEATURE`: their bytes are spread over the heap.
    """
    return [_node(operation, subject) for operation in _constants(model)]


def write_xml(model: ov.Model) -> bytes:
    """The XML of a model. Raises what OpenVINO raises."""
    fd = linux.memfd("ir")
    try:
        with tempfile.TemporaryDirectory(prefix="softnpu-ir-") as folder:
            link = Path(folder, "model.xml")
            link.symlink_to(f"/proc/self/fd/{fd}")
            ov.serialize(model, link, os.devnull)
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def _constants(model: Any) -> Iterator[Any]:
    for operation in model.get_ordered_ops():
        kind = operation.get_type_name()
        if kind == "Constant":
            yield operation
        for body in range(_BODIES.get(kind, 0)):
            yield from _constants(_body(operation, body))


def _body(operation: Any, index: int) -> Any:
    return operation.get_function(index) if operation.get_type_name() == "If" else operation.get_function()


def _node(operation: Any, subject: str) -> ConstantNode:
    name = operation.friendly_name
    if operation.get_element_type() == ov.Type.string:
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_FEATURE,
            f"{subject}, constant '{name}'",
            "element type string",
            "constants of numbers",
            "move text out of the model",
        )
    length = operation.get_byte_size()
    return ConstantNode(name, operation.tensor_view.data.ctypes.data if length else 0, length)
