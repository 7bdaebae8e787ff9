"""Reading an IR over mapped weights, and giving its inputs static shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import openvino as ov

from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.common.model_texts import in_utf8
from softnpu.emulator.compiler import files
from softnpu.emulator.compiler.checks import input_names
from softnpu.emulator.compiler.error_info import openvino_errors
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

# OpenVINO tries every frontend that it has, and others than the IR's follow paths that are written in the
# model (external data of ONNX). So only what begins like an IR is shown to it.
_IR_START = re.compile(rb"(\xef\xbb\xbf)?\s{0,64}<(\?xml|net)[\s>]")
_LISTED = 8
_DIM_MAX = 2**31 - 1


def read(
    core: ov.Core,
    xml: bytes,
    weights: WeightSpace | None,
    subject: str,
    result: ZeResult = ZeResult.ERROR_INVALID_ARGUMENT,
) -> ov.Model:
    """Return the model in `xml` with its constants in `weights`, which it shares and does not copy.

    The space has to stay alive as long as the model.

    Refuses with `result` what is no readable IR, or has no outputs. Intel's compiler answers what its own
    OpenVINO does not read with VCL_RESULT_ERROR_INVALID_ARGUMENT, and the driver passes that on.
    """
    if not _IR_START.match(xml) or len(xml) > files.XML_LIMIT:
        raise refuse(
            result, f"{subject}, IR", found=f"begins with {xml[:16]!r}", expected="the XML of an OpenVINO IR"
        )
    expected = "an OpenVINO IR of a version that this compiler reads, with the weights that belong to it"
    hint = "" if weights is not None and weights.layout.sources else "the model came without weights"
    with openvino_errors(result, f"{subject}, IR", expected, hint):
        if weights is None:
            model = core.read_model(in_utf8(xml))
        else:
            array = np.frombuffer(weights.view, dtype=np.uint8)
            model = core.read_model(in_utf8(xml), ov.Tensor(array, shared_memory=True))
        outputs = len(model.outputs)
    if outputs == 0:
        raise refuse(
            result, f"{subject}, IR", found="a model without outputs", expected="at least one output"
        )
    return model


def reshape(model: ov.Model, shapes: Mapping[str, tuple[int, ...]], subject: str) -> None:
    """Give inputs the requested shapes, in elements.

    Keys are any tensor name or the friendly name of an input. Refuses with `ERROR_INVALID_ARGUMENT` an
    unknown or twice named input and a shape that the model cannot take.
    """
    names = input_names(model)
    requested: dict[int, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        position = _find(model, name, subject)
        object_name = f"{subject}, input '{names[position]}'"
        if requested.setdefault(position, shape) != shape:
            raise _bad_shape(
                object_name,
                found=f"two shapes, {_text(requested[position])} and {_text(shape)}",
                expected="one shape",
            )
        partial = model.inputs[position].partial_shape
        if not all(0 < dim <= _DIM_MAX or _is_own(partial, axis, dim) for axis, dim in enumerate(shape)):
            raise _bad_shape(
                object_name, found=f"shape {_text(shape)}", expected=f"dimensions from 1 to {_DIM_MAX}"
            )
    applied = {
        position: requested[position]
        for position in sorted(requested)
        if model.inputs[position].partial_shape != ov.PartialShape(list(requested[position]))
    }
    if applied:
        listed_shapes = ", ".join(
            f"'{names[position]}' {_text(shape)}" for position, shape in applied.items()
        )
        before = ", ".join(f"'{names[at]}' {model.inputs[at].partial_shape}" for at in applied)
        with openvino_errors(
            ZeResult.ERROR_INVALID_ARGUMENT, f"{subject}, input {listed_shapes}", f"shapes that fit {before}"
        ):
            model.reshape({position: ov.PartialShape(list(shape)) for position, shape in applied.items()})


def _is_own(partial: ov.PartialShape, axis: int, dim: int) -> bool:
    """Whether the model itself declares this size: only then may a dimension be empty."""
    if partial.rank.is_dynamic or axis >= len(partial):
        return False
    return bool(partial[axis].is_static and partial[axis].get_length() == dim)


def _find(model: ov.Model, name: str, subject: str) -> int:
    for position, port in enumerate(model.inputs):
        if name in port.names or name == port.node.friendly_name:
            return position
    names = [f"'{known}'" for known in input_names(model)]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    listed = ", ".join(names[:_LISTED]) + more
    raise refuse(
        ZeResult.ERROR_INVALID_ARGUMENT,
        f"{subject}, shape for input '{name}'",
        found="the model has no such input",
        expected=f"one of its inputs: {listed}" if names else "no shapes, the model has no inputs",
    )


def _bad_shape(object_name: str, *, found: str, expected: str) -> Refused:
    return refuse(ZeResult.ERROR_INVALID_ARGUMENT, object_name, found=found, expected=expected)


def _text(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"
