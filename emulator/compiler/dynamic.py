"""Dynamic dimensions: what they become in the metadata, and the arguments that carry shapes at an execution.

Every argument with dynamic dimensions has a shape tensor, `vpux_ie_shape_NAME`, as with Intel's compiler: an
i32 for each dimension, innermost first. Those of inputs follow the inputs, those of outputs the outputs, so
that the arguments of the model keep their positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import openvino as ov

from softnpu.emulator.blob.container import SHAPE_TENSOR, ArgumentMeta
from softnpu.emulator.compiler.error_info import openvino_errors
from softnpu.emulator.compiler.options import ARGUMENT_LIMIT
from softnpu.emulator.interface.result import ZeResult, refuse

_SHAPE_TYPE = "i32"
_SHAPE_ITEM = 4


class ArgumentSize(NamedTuple):
    """The size of an argument as in `ArgumentMeta`."""

    shape: tuple[int, ...]
    byte_size: int
    partial_shape: str = ""
    unbounded: bool = False


def argument_size(
    partial: ov.PartialShape, bits: int, is_input: bool, name: str, object_name: str
) -> ArgumentSize:
    """Return the memory that an argument of elements of `bits` bits needs.

    Refuses with `ERROR_UNSUPPORTED_FEATURE` an unknown number of dimensions, with `ERROR_UNSUPPORTED_SIZE`
    more than 1 TiB. An output whose bound is above that is unbounded: such bounds come of arithmetic.
    """
    if partial.rank.is_dynamic:
        raise _no_rank(partial, is_input, name, object_name)
    lows = [dim.get_min_length() for dim in partial]
    highs = [dim.get_max_length() for dim in partial]
    open_ended = any(high < 0 for high in highs)
    size = 0 if open_ended else (math.prod(highs) * bits + 7) // 8
    if size > ARGUMENT_LIMIT and (is_input or partial.is_static):
        hint = (
            "" if partial.is_static else "leave a dimension without a bound (-1) if it has to be that large"
        )
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_SIZE,
            object_name,
            found=f"{size} bytes",
            expected=f"at most {ARGUMENT_LIMIT} bytes",
            hint=hint,
        )
    if partial.is_static:
        return ArgumentSize(tuple(highs), size)
    # written from the numbers: dimensions may carry symbols, which OpenVINO would write as well
    text = ov.PartialShape([ov.Dimension(*pair) for pair in zip(lows, highs, strict=True)]).to_string()
    if not open_ended and size <= ARGUMENT_LIMIT:
        return ArgumentSize(tuple(highs), size, text)
    smallest = tuple(max(1, low) for low in lows)
    return ArgumentSize(smallest, math.prod(smallest) * bits // 8, text, unbounded=True)


def with_shape_tensors(arguments: Sequence[ArgumentMeta], subject: str) -> tuple[ArgumentMeta, ...]:
    """Return all inputs and their shape tensors, then all outputs and theirs.

    Refuses with `ERROR_UNSUPPORTED_FEATURE` a model that uses the name of a shape tensor itself.
    """
    if not any(argument.is_dynamic for argument in arguments):
        return tuple(arguments)
    names = {argument.name for argument in arguments}
    ordered: list[ArgumentMeta] = []
    for is_input in (True, False):
        ordered += [argument for argument in arguments if argument.input is is_input]
        open_ended = [
            (at, each) for at, each in enumerate(ordered) if each.is_dynamic and each.input is is_input
        ]
        for index, argument in open_ended:
            shape_tensor = _shape_tensor(argument, index)
            if shape_tensor.name in names:
                raise refuse(
                    ZeResult.ERROR_UNSUPPORTED_FEATURE,
                    f"{subject}, argument '{shape_tensor.name}'",
                    found="a name that the compiler gives",
                    expected=f"names that do not begin with {SHAPE_TENSOR}",
                )
            ordered.append(shape_tensor)
    return tuple(ordered)


def to_static(model: ov.Model, subject: str) -> None:
    """Give all inputs their largest shapes. Refuse with `ERROR_INVALID_ARGUMENT` one that has none."""
    largest: dict[int, ov.PartialShape] = {}
    for position, port in enumerate(model.inputs):
        partial = port.partial_shape
        if partial.is_static:
            continue
        if partial.rank.is_dynamic or any(dim.get_max_length() < 0 for dim in partial):
            name = min(port.names, default=port.node.friendly_name)
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"{subject}, input '{name}'",
                found=f"shape {partial}, and NPU_DYNAMIC_SHAPE_TO_STATIC=YES",
                expected="an upper bound for every dimension",
                hint="give the input bounds or a shape, or leave the property out",
            )
        largest[position] = ov.PartialShape([dim.get_max_length() for dim in partial])
    if largest:
        with openvino_errors(
            ZeResult.ERROR_INVALID_ARGUMENT,
            f"{subject}, NPU_DYNAMIC_SHAPE_TO_STATIC",
            "inputs that fit each other at their upper bounds",
        ):
            model.reshape(largest)


def _shape_tensor(argument: ArgumentMeta, index: int) -> ArgumentMeta:
    rank = len(argument.shape)
    name = SHAPE_TENSOR + argument.name
    return msgspec.structs.replace(
        argument,
        name=name,
        names=(),
        element_type=_SHAPE_TYPE,
        shape=(rank,),
        layout="",
        byte_size=rank * _SHAPE_ITEM,
        friendly_name=name,
        node_name=SHAPE_TENSOR + argument.node_name,
        model_shape=(rank,),
        strides=False,
        partial_shape="",
        unbounded=False,
        shape_of=index,
    )


def _no_rank(partial: ov.PartialShape, is_input: bool, name: str, object_name: str) -> Exception:
    hint = f"give it a shape, e.g. with --shape {name}=1,3,320,320"
    if not is_input:
        hint = "change the model so that the output has a fixed number of dimensions"
    return refuse(
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        object_name,
        found=f"shape {partial} of any number of dimensions",
        expected="a known number of dimensions",
        hint=hint,
    )
