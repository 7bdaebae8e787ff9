"""States whose shape changes: they stay variables of the model, and become arguments of the graph alone.

The property `NPU_STATES_DYNAMIC` makes every state of a model one of these. OpenVINO's CPU runtime fuses
attention with its variables and rounds otherwise without them, so replacing them by inputs and outputs would
give other numbers. The engine gives each variable its value before an execution and takes it back afterwards
(`openvino/dynamic/states.py`).

The arguments have the names and the order of other states. Each has a shape tensor, also if its shape is
static: an execution that begins with the initial value has -1 for every dimension there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import openvino as ov
from openvino import opset6, opset13
from openvino.op.util import Variable, VariableInfo

from softnpu.emulator.blob.container import ASSIGN, READ_VALUE, ArgumentMeta, StateMeta
from softnpu.emulator.compiler import dynamic, states
from softnpu.emulator.compiler.error_info import openvino_errors
from softnpu.emulator.compiler.options import PRECISION, STATES_DYNAMIC, STATES_INIT, WEIGHTLESS, Settings
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

# those that OpenVINO's CPU runtime keeps in variables; others end in an error or show garbage (2026.4)
_TYPES = {"f32": 32, "f16": 16, "bf16": 16, "i32": 32, "i8": 8, "u8": 8, "boolean": 8}
_WIDENED = "f16"


def widen(core: ov.Core, model: ov.Model, subject: str) -> frozenset[str]:
    """Turn variables of f16 with an open shape into variables of f32; return their names.

    In f32 OpenVINO's CPU runtime (2026.4) keeps these in f32 between inferences: f16 would round at every
    step. A variable of a static shape stays f16 there, and one whose value is an output as it is.
    """
    readers: dict[str, list[Any]] = {}
    writers: dict[str, list[Any]] = {}
    states.find_accesses(model, readers, writers, subject)
    found = {}
    for variable in model.get_variables():
        name = variable.info.variable_id
        if len(readers.get(name, ())) != 1 or len(writers.get(name, ())) != 1:
            continue  # `described` refuses it
        kind, shape = _declared(variable.info, readers[name][0])
        if kind == _WIDENED and shape.is_dynamic:
            found[name] = variable, shape, readers[name][0], writers[name][0]
    shown = {name: _before_results(reader.output(0)) for name, (_, _, reader, _) in found.items()}
    if any(shown.values()):
        kept = _kept_as_f16(core, model, subject)
        found = {name: each for name, each in found.items() if not shown[name] & kept}
    for each in found.values():
        _widen(model, *each)
    return frozenset(found)


def _before_results(output: Any) -> set[str]:
    """Return the names of this operation and of those on this value alone before an output; none without one.

    OpenVINO removes some of these, such as a Reshape to the same shape, and keeps one name of all.
    """
    found = set()
    for target in output.get_target_inputs():
        node = target.get_node()
        others = [
            value.get_node() for at, value in enumerate(node.input_values()) if at != target.get_index()
        ]
        if node.get_type_name() == "Result":
            found.add(output.get_node().friendly_name)
        elif all(other.get_type_name() == "Constant" for other in others):
            for each in node.outputs():
                if each.get_element_type() == output.get_element_type():
                    found |= _before_results(each)
    return found | {output.get_node().friendly_name} if found else found


def _kept_as_f16(core: ov.Core, model: ov.Model, subject: str) -> set[str]:
    """Return the names of the states that OpenVINO reads as f16, by its own compilation."""
    with openvino_errors(ZeResult.ERROR_MODULE_BUILD_FAILURE, subject, "a model that can be compiled"):
        compiled = core.compile_model(model, "CPU", {PRECISION: "f32"})
    layers = [node.rt_info for node in compiled.get_runtime_model().get_ops()]
    return {
        name
        for info in layers
        if info["layerType"].astype(str) == "MemoryInput" and info["outputPrecisions"].astype(str) == _WIDENED
        for name in info["originalLayersNames"].astype(str).split(",")
    }


def _widen(model: ov.Model, variable: Any, shape: Any, reader: Any, writer: Any) -> None:
    info = VariableInfo()
    info.variable_id, info.data_type, info.data_shape = variable.info.variable_id, ov.Type.f32, shape
    wide = Variable(info)
    begin = [opset13.convert(reader.input_value(0), "f32")] if reader.get_input_size() else []
    read = opset6.read_value(*begin, wide)
    read.friendly_name = reader.friendly_name
    narrow = opset13.convert(read, _WIDENED).output(0)
    narrow.set_names(reader.output(0).names)
    for target in reader.output(0).get_target_inputs():
        target.replace_source_output(narrow)
    assigned = opset6.assign(opset13.convert(writer.input_value(0), "f32"), wide)
    assigned.friendly_name = writer.friendly_name
    model.remove_sink(writer)
    model.remove_variable(variable)
    model.add_variables([wide])
    model.add_sinks([assigned])


def described(
    model: ov.Model, arguments: Sequence[ArgumentMeta], subject: str, widened: Collection[str] = ()
) -> tuple[tuple[ArgumentMeta, ...], tuple[StateMeta, ...]]:
    """Return the arguments of a graph with those of all variables of its model, and its states.

    `arguments` are those that the model has itself, with their shape tensors, `widened` the names of the
    variables of f32 that were f16. Refuses with
    `ERROR_UNSUPPORTED_FEATURE`, by the id, a variable inside of a body, one with several `ReadValue` or
    `Assign`, one of an unknown rank or of none, one of another element type than the CPU runtime keeps, and
    an argument with the name of a state.
    """
    readers: dict[str, list[Any]] = {}
    writers: dict[str, list[Any]] = {}
    states.find_accesses(model, readers, writers, subject)
    infos = {variable.info.variable_id: variable.info for variable in model.get_variables()}
    own = [argument for argument in arguments if argument.shape_of < 0]
    taken = {argument.name for argument in own}
    added: list[ArgumentMeta] = []
    names = sorted(readers.keys() | writers.keys())
    for name in names:
        counts = len(readers.get(name, ())), len(writers.get(name, ()))
        if counts != (1, 1):
            found = f"{counts[0]} ReadValue and {counts[1]} Assign"
            raise _refused(name, subject, found=found, expected="one of each for a state whose shape changes")
        pair = [
            _argument(*_declared(infos[name], readers[name][0]), prefix + name, name, subject)
            for prefix in (READ_VALUE, ASSIGN)
        ]
        for argument in pair:
            if argument.name in taken:
                found = f"an argument is called '{argument.name}'"
                raise _refused(name, subject, found=found, expected="other names than those of states")
        added += pair
    ordered = dynamic.with_shape_tensors(
        [argument for kind in (True, False) for argument in (*own, *added) if argument.input is kind], subject
    )
    index = {argument.name: at for at, argument in enumerate(ordered) if argument.shape_of < 0}
    kept = [
        StateMeta(
            variable=name,
            input=index[READ_VALUE + name],
            output=index[ASSIGN + name],
            element_type=_WIDENED if name in widened and _is_wide(ordered[index[READ_VALUE + name]]) else "",
        )
        for name in names
    ]
    return ordered, tuple(kept)


def _is_wide(argument: ArgumentMeta) -> bool:
    return argument.element_type == "f32"


def _declared(info: Any, reader: Any) -> tuple[str, Any]:
    """Element type and bounds of a variable; one that leaves them open has those of what it is read as."""
    if info.data_shape.rank.is_dynamic or info.data_type.is_dynamic():
        return reader.output(0).get_element_type().get_type_name(), reader.output(0).partial_shape
    return info.data_type.get_type_name(), info.data_shape


def _argument(kind: str, shape: Any, argument: str, name: str, subject: str) -> ArgumentMeta:
    is_input = argument.startswith(READ_VALUE)
    if kind not in _TYPES or shape.rank.is_dynamic or not len(shape):
        expected = f"at least one dimension, a known number of them, and one of {', '.join(_TYPES)}"
        raise _refused(name, subject, found=f"{kind}{shape}", expected=f"{expected}, as its shape changes")
    size = dynamic.argument_size(shape, _TYPES[kind], is_input, argument, f"{subject}, variable '{name}'")
    bounds = [ov.Dimension(dim.get_min_length(), dim.get_max_length()) for dim in shape]
    return ArgumentMeta(
        name=argument,
        names=(),
        input=is_input,
        element_type=kind,
        shape=size.shape,
        layout="",
        byte_size=size.byte_size,
        friendly_name=argument,
        node_name=argument,
        model_shape=tuple(dim.get_length() if dim.is_static else -1 for dim in shape),
        partial_shape=size.partial_shape or ov.PartialShape(bounds).to_string(),
        unbounded=size.unbounded,
    )


def are_dynamic(arguments: Sequence[ArgumentMeta], kept: Sequence[StateMeta]) -> bool:
    """Whether the states of a blob from outside are said to be of this kind."""
    return any(0 <= state.input < len(arguments) and arguments[state.input].is_dynamic for state in kept)


def check_settings(settings: Settings, subject: str) -> None:
    """Refuse with `ERROR_INVALID_ARGUMENT` what makes no sense with `NPU_STATES_DYNAMIC`."""
    for name, is_set in ((STATES_INIT, settings.initial_states), (WEIGHTLESS, settings.separates_weights)):
        if is_set:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"{subject}, property {STATES_DYNAMIC}",
                found=f"YES, and {name}=YES",
                expected="one of both",
                property=STATES_DYNAMIC,
            )


def _refused(variable: str, subject: str, *, found: str, expected: str) -> Refused:
    return refuse(
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        f"{subject}, variable '{variable}'",
        found=found,
        expected=expected,
    )
