"""Have dynamic results of loops and of states looked up anew in each inference.

OpenVINO looks for them where they were before memory moved, or in the memory of another request.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from openvino import opset13 as ops

from softnpu.emulator.common.graph_edits import numbers, put_behind

_HALF: Final = 2
"""Bytes of f16 and bf16."""


def loop(node: Any) -> bool:
    """What computes with a dynamic result may look for it where it was before memory moved.

    That happens when another part of the model gets another size. A Slice of all of it is looked up anew.
    """
    found = False
    for output in node.outputs():
        shape = output.get_partial_shape()
        axes = [] if shape.rank.is_dynamic else [at for at, size in enumerate(shape) if size.is_dynamic]
        if axes and any(one.get_node().get_type_name() != "Result" for one in output.get_target_inputs()):
            put_behind(output, partial(_whole, axes[0]), "all")
            found = True
    return found


def read_value(node: Any) -> bool:
    """A dynamic state of 16 bits that is an output as it is gets mixed up among the requests of a model."""
    output = node.output(0)
    shape, readers = output.get_partial_shape(), output.get_target_inputs()
    results = [reader for reader in readers if reader.get_node().get_type_name() == "Result"]
    if not results or shape.rank.is_dynamic or shape.is_static or output.get_element_type().size != _HALF:
        return False
    axis = next(at for at, size in enumerate(shape) if size.is_dynamic)
    copied = _whole(axis, output)
    copied.set_friendly_name(f"{node.get_friendly_name()}/all")
    for reader in results:
        reader.replace_source_output(copied.output(0))
    return True


def _whole(axis: int, result: Any) -> Any:
    """Return a Slice of all of it, which OpenVINO does not see through: the axis is dynamic."""
    at = numbers([axis])
    size = ops.gather(ops.shape_of(result), at, ops.constant(0))
    return ops.slice(result, numbers([0]), size, numbers([1]), at)
