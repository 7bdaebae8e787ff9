"""Requirements on a model before it becomes a blob, and its arguments in the metadata."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov

from softnpu.emulator.blob.container import ASSIGN, READ_VALUE, SHAPE_TENSOR, ArgumentMeta
from softnpu.emulator.common.model_bodies import all_bodies
from softnpu.emulator.compiler import dynamic
from softnpu.emulator.compiler.arguments import Original, find_argument, originals
from softnpu.emulator.compiler.error_info import openvino_errors
from softnpu.emulator.compiler.options import PRECISION, STRIDES_FOR
from softnpu.emulator.interface.commands import MAX_ARGUMENTS, MAX_DIMS
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.openvino.defects import remedies

# bits of an element in memory
_TYPES = {
    "boolean": 8, "i8": 8, "u8": 8, "i16": 16, "u16": 16, "f16": 16, "bf16": 16,
    "i32": 32, "u32": 32, "f32": 32, "i64": 64, "u64": 64, "f64": 64,
}  # fmt: skip
# what weights are compressed to, which a program may keep outside of the model; those that CPU runtime and
# graph extension both know
_COMPRESSED = {"f8e4m3": 8, "f8e5m2": 8, "f8e8m0": 8, "i4": 4, "u4": 4, "u2": 2, "nf4": 4}
_LARGE = 1 << 20
_LISTED = 20
_STRUCTURE = {"Parameter", "Result", "Constant"}
_OF_THE_COMPILER = (SHAPE_TENSOR, READ_VALUE, ASSIGN)


def input_names(model: ov.Model) -> list[str]:
    """Return the argument names of the inputs in model order, unique."""
    return _unique_names(model)[: len(model.inputs)]


def arguments(
    model: ov.Model,
    subject: str,
    before: Sequence[Original] | None = None,
    strides_for: Sequence[str] = (),
) -> tuple[ArgumentMeta, ...]:
    """Return all inputs, then all outputs, in model order; byte sizes are those of dense tensors.

    Behind the inputs, and behind the outputs, come the shape tensors of those with dynamic dimensions.
    `before` is what the arguments were before shapes and flags were applied, `strides_for` names those that
    take strides. Refuses with `ERROR_UNSUPPORTED_FEATURE` what has no known rank or an element type that
    OpenVINO's CPU runtime takes for no argument, with `ERROR_UNSUPPORTED_SIZE` an argument above 1 TiB.
    """
    names = _unique_names(model)
    count = len(model.inputs)
    ports = [*model.inputs, *model.outputs]
    before = originals(model) if before is None else before
    nodes = _unique(
        [[entry.name, *candidates] for entry, candidates in zip(before, _names(model), strict=True)]
    )
    strided = _strided(strides_for, ports, before, names, subject)
    described = [
        _argument(port, name, node, index < count, subject, original, index in strided)
        for index, (port, name, node, original) in enumerate(zip(ports, names, nodes, before, strict=True))
    ]
    return dynamic.with_shape_tensors(described, subject)


def check_count(described: Sequence[ArgumentMeta], subject: str) -> None:
    """Refuse a graph whose arguments do not fit into a command, with `ERROR_UNSUPPORTED_SIZE`."""
    if len(described) <= MAX_ARGUMENTS:
        return
    inputs = sum(argument.input for argument in described)
    raise refuse(
        ZeResult.ERROR_UNSUPPORTED_SIZE,
        f"{subject}, arguments",
        found=f"{inputs} inputs and {len(described) - inputs} outputs, with states and dynamic shapes",
        expected=f"at most {MAX_ARGUMENTS} together",
        hint="join some of them (Concat, Split), or split the model",
    )


def unsupported_operations(core: ov.Core, model: ov.Model, precision: str, subject: str) -> list[ov.Node]:
    """Return the operations of a model that the host cannot execute.

    The query replaces large constants by inputs first: as they are, OpenVINO folds those of 16 bits into
    f32, three times their memory. It corrects what OpenVINO computes wrongly: some of that ends the process.
    Only a model that then has something unsupported is queried as it is, because a few operations want
    constants.
    """
    copy = model.clone()
    inputs = []
    for operation in copy.get_ordered_ops():
        if operation.get_type_name() == "Constant" and operation.get_byte_size() >= _LARGE:
            parameter = ov.op.Parameter(operation.get_element_type(), operation.get_output_partial_shape(0))
            parameter.set_friendly_name(operation.friendly_name)
            ov.utils.replace_node(operation, parameter)
            inputs.append(parameter)
    copy.add_parameters(inputs)
    with openvino_errors(ZeResult.ERROR_MODULE_BUILD_FAILURE, subject, "a model that can be compiled"):
        has_changed = remedies.correct(copy) or bool(inputs)
    if has_changed and not _unsupported(core, copy, precision, subject):
        return []
    return _unsupported(core, model, precision, subject)


def check_operations(core: ov.Core, model: ov.Model, precision: str, subject: str) -> None:
    """Refuse with `ERROR_UNSUPPORTED_FEATURE` a model with operations that the host cannot execute."""
    _check_bits(model, subject)
    unsupported = unsupported_operations(core, model, precision, subject)
    # an input whose only reader is unsupported is left out too, and would be named first
    shown = [op for op in unsupported if op.get_type_name() not in _STRUCTURE] or unsupported
    if not shown:
        return
    first, kind = shown[0].friendly_name, shown[0].get_type_name()
    raise refuse(
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        f"{subject}, operation '{first}'",
        found=f"type {kind} cannot run on this host, one of {len(shown)} such operations",
        expected="operations that OpenVINO's CPU runtime executes",
    )


def _check_bits(model: ov.Model, subject: str) -> None:
    """OpenVINO's CPU runtime (2026.4) takes what it converts to u1 for bytes, and ends."""
    for part in [model, *all_bodies(model)]:
        for operation in part.get_ordered_ops():
            if operation.get_type_name() != "Convert" or operation.get_output_element_type(0) != ov.Type.u1:
                continue
            if operation.input_value(0).get_node().get_type_name() != "Constant":
                raise refuse(
                    ZeResult.ERROR_UNSUPPORTED_FEATURE,
                    f"{subject}, operation '{operation.friendly_name}'",
                    found="element type u1 that is computed",
                    expected="u1 for constants only",
                    hint="compute with u8 or boolean",
                )


def _unsupported(core: ov.Core, model: ov.Model, precision: str, subject: str) -> list[ov.Node]:
    with openvino_errors(ZeResult.ERROR_MODULE_BUILD_FAILURE, subject, "a model that can be compiled"):
        supported = core.query_model(model, "CPU", {PRECISION: precision})
        operations = model.get_ordered_ops()
        left = [op for op in operations if op.friendly_name not in supported]
        if not any(op.get_type_name() == "Parameter" for op in left):
            return left
        # an input that nothing reads is in no answer
        read = {port.get_node().get_name() for op in operations for port in op.input_values()}
        return [op for op in left if op.get_type_name() != "Parameter" or op.get_name() in read]


def _strided(
    requested: Sequence[str],
    ports: Sequence[ov.Output],
    before: Sequence[Original],
    names: Sequence[str],
    subject: str,
) -> set[int]:
    strided = set()
    for name in requested:
        index = names.index(name) if name in names else find_argument(name, ports, before, by_index=False)
        shape = None if index is None else ports[index].partial_shape
        if index is None or shape is None or shape.is_dynamic or len(shape) > MAX_DIMS:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"{subject}, property {STRIDES_FOR}",
                found=f"'{name}'",
                expected=f"one with at most {MAX_DIMS} static dimensions: {', '.join(names[:_LISTED])}",
                property=STRIDES_FOR,
            )
        strided.add(index)
    return strided


def _argument(
    port: ov.Output,
    name: str,
    node: str,
    is_input: bool,
    subject: str,
    original: Original,
    strides: bool,
) -> ArgumentMeta:
    kind = port.get_element_type().get_type_name()
    object_name = f"{subject}, {'input' if is_input else 'output'} '{name}'"
    partial = port.partial_shape
    bits = _TYPES.get(kind) or _bits_of_compressed(
        kind, partial.is_dynamic, port.node.friendly_name, object_name
    )
    size = dynamic.argument_size(partial, bits, is_input, name, object_name)
    layout = port.node.layout
    return ArgumentMeta(
        name=name,
        names=tuple(sorted(port.names)),
        input=is_input,
        element_type=kind,
        shape=size.shape,
        layout="" if layout.empty else layout.to_string(),
        byte_size=size.byte_size,
        friendly_name=port.node.friendly_name,
        node_name=node,
        model_shape=size.shape if original.shape is None else original.shape,
        strides=strides,
        partial_shape=size.partial_shape,
        unbounded=size.unbounded,
    )


def _bits_of_compressed(kind: str, is_dynamic: bool, node: str, object_name: str) -> int:
    """Bits of an element of a compressed type. Refuses other types, states, and open shapes of packed ones.

    A dimension is open by whole bytes only.
    """
    bits = _COMPRESSED.get(kind, 0)
    if bits and not node.startswith((READ_VALUE, ASSIGN)) and (bits % 8 == 0 or not is_dynamic):
        return bits
    known = [*_TYPES, *(each for each, size in _COMPRESSED.items() if not is_dynamic or size % 8 == 0)]
    raise refuse(
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        object_name,
        found=f"element type {kind}{' with dynamic dimensions' if bits and is_dynamic else ''}",
        expected=f"one of {', '.join(_TYPES if node.startswith((READ_VALUE, ASSIGN)) else known)}",
        hint="convert it inside the model",
    )


def _unique_names(model: ov.Model) -> list[str]:
    """One name for each argument: its first tensor name that is free, else the friendly name, else numbered.

    Two outputs share all their tensor names when they show the same tensor.
    """
    return _unique(_names(model))


def _names(model: ov.Model) -> list[list[str]]:
    """Return the names of each argument, tensor names first."""
    names = []
    for port in [*model.inputs, *model.outputs]:
        friendly = port.node.friendly_name
        # the tensor of a state may be one that the model shows too, which has more right to its names
        tensors = () if friendly.startswith((READ_VALUE, ASSIGN)) else port.names
        names.append([*sorted(tensors), friendly])
    return names


def _unique(names: Sequence[Sequence[str]]) -> list[str]:
    """For each the first of its names that is free, else its first one, numbered.

    A name that begins as those of shape tensors and states is for want of any other: OpenVINO's plugin takes
    the argument for one of these.
    """
    used: dict[str, None] = {}
    for choice in names:
        candidates = [name for name in choice if not name.startswith(_OF_THE_COMPILER)] or choice
        free = next((name for name in candidates if name not in used), None)
        number = 1
        while free is None or free in used:
            free, number = f"{candidates[0]}:{number}", number + 1
        used[free] = None
    return list(used)
