"""Kernels in a blob that a client brings: the plan fits the IR, and nothing in it is trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from softnpu.emulator.blob import kernel_plan
from softnpu.emulator.blob.container import ArgumentMeta, BlobReader
from softnpu.emulator.blob.kernel_plan import KernelPlan, KernelRun, Value
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.kernels import description

if TYPE_CHECKING:
    import openvino as ov


def check_travels(reader: BlobReader, subject: str) -> None:
    """Refuse kernels of a program: its blob is of use to nobody else."""
    plan = kernel_plan.read(reader)
    name = "" if plan is None else description.function_in(plan.modules)
    if name:
        found = f"kernel {name}, a Python function, which does not travel"
        raise _invalid(subject, found, "kernels in WebAssembly")


def without_values(
    described: tuple[ArgumentMeta, ...],
    plan: KernelPlan,
    declared: tuple[ArgumentMeta, ...],
    subject: str,
) -> tuple[ArgumentMeta, ...]:
    """Return the arguments of an IR with kernels without its values; refuse a plan that does not fit."""
    from softnpu.emulator.compiler import dynamic

    inputs, outputs = (
        [argument for argument in described if argument.input is is_input and argument.shape_of < 0]
        for is_input in (True, False)
    )
    kernel_plan.check(plan, *([_port(each) for each in side] for side in (inputs, outputs)))
    _check_runs(plan, subject)
    for value in plan.values:
        if value.element_type not in description.ELEMENT_SIZES:
            found, expected = f"a value of type {value.element_type[:20]}", "a type of kernels"
            raise _invalid(subject, found, expected)
    own = [*inputs[: len(inputs) - len(plan.parameters)], *outputs[: len(outputs) - len(plan.results)]]
    known = [argument for argument in declared if argument.shape_of < 0]
    if len(known) == len(own):
        own = [_as_declared(*pair) for pair in zip(own, known, strict=True)]
    return dynamic.with_shape_tensors(own, subject)


def _check_runs(plan: KernelPlan, subject: str) -> None:
    """Refuse modules that are no kernels, runs with other numbers of tensors, outputs that cannot shrink."""
    modules = [description.read(content) for content in plan.modules]
    for step in plan.steps:
        if not isinstance(step, KernelRun):
            continue
        known = modules[step.kernel]
        counts, expected = (len(step.inputs), len(step.outputs)), (len(known.inputs), len(known.outputs))
        if counts != expected:
            found = f"{known.full_name} with {counts[0]} inputs and {counts[1]} outputs"
            raise _invalid(subject, found, f"{expected[0]} and {expected[1]}")
        for name, number in zip(known.outputs, step.outputs, strict=True):
            value = plan.values[number]
            if name in known.dynamic and not value.takes((0,) * len(value.shape)):
                found = f"{known.full_name} with output {name} of {value.bounds}"
                raise _invalid(subject, found, "one from 0 on, as it is dynamic")


def _port(argument: ArgumentMeta) -> Value:
    if not argument.is_dynamic:
        return Value(argument.element_type, argument.shape)
    import openvino as ov

    return _bounds(argument.element_type, ov.PartialShape(argument.partial_shape))


def _bounds(kind: str, shape: ov.PartialShape) -> Value:
    bounds = [(each.get_min_length(), each.get_max_length()) for each in shape]
    return Value(kind, tuple(high for _, high in bounds), tuple(low for low, _ in bounds))


def _as_declared(argument: ArgumentMeta, declared: ArgumentMeta) -> ArgumentMeta:
    """Return an output as the metadata has it if the IR is only more open: a cut takes bounds away.

    The engine compares each result with what is declared, which nobody has checked yet.
    """
    import openvino as ov

    from softnpu.emulator.compiler import dynamic

    size = description.ELEMENT_SIZES.get(argument.element_type, 0)
    if argument.input or not argument.is_dynamic or not size:
        return argument
    try:
        shape = ov.PartialShape(declared.partial_shape or list(declared.shape))
        narrow = dynamic.argument_size(shape, 8 * size, False, declared.name, "output")
        is_within = _port(argument).covers(_bounds(argument.element_type, shape))
    except (Refused, RuntimeError, ValueError, LookupError, TypeError, OverflowError):
        return argument  # it will not be what the IR says
    return msgspec.structs.replace(argument, **narrow._asdict()) if is_within else argument


def _invalid(subject: str, found: str, expected: str) -> Refused:
    return refuse(
        ZeResult.ERROR_INVALID_NATIVE_BINARY,
        f"blob, {subject}, kernels",
        found=found,
        expected=expected,
        hint="compile the model again",
    )
