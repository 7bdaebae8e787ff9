"""States of a model: `ReadValue` and `Assign` become arguments, as the real compiler does it.

A variable `v` becomes an input `vpux_ie_read_value_v` and an output `vpux_ie_assign_v` of the same type and
shape. They follow the model's own inputs and outputs, in the order of the ids. Whoever executes the graph
keeps the state: what an inference wrote to the output is the input of the next one.

An initial value that is a constant goes into the metadata, as bytes that are repeated. Any other is computed
by a graph of its own, which the property `NPU_STATES_INIT` makes of the same IR: `initial_values`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13
from openvino.passes import ConstantFolding, Manager

from softnpu.emulator.blob.container import ASSIGN, READ_VALUE, ArgumentMeta, StateMeta
from softnpu.emulator.common import model_texts
from softnpu.emulator.common.model_bodies import bodies_of
from softnpu.emulator.compiler.arguments import Original
from softnpu.emulator.compiler.error_info import openvino_errors
from softnpu.emulator.compiler.options import STATES_DYNAMIC, STATES_INIT
from softnpu.emulator.compiler.weights_separation import SEPARATED
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

_INLINE = 1024
"""Maximum bytes of a constant that goes into the metadata even if its elements differ."""
_I32 = np.iinfo(np.int32)
_INTEGERS = {ov.Type.i64: np.int64, ov.Type.u64: np.uint64}
_F32_EXPONENT = 0x7F800000
_VARIABLE = re.compile(rb'\stype="(ReadValue|Assign)"[^>]*>\s*<data\s[^>]*?\bvariable_id="([^"]*)"')


@dataclass(frozen=True)
class State:
    """One variable. `value` is the output of the model that gives its initial value, None for zeros.

    `initial` is that value as bytes to be repeated; empty: it has to be computed.
    """

    variable: str
    value: Any
    initial: bytes


def check_readers(xml: bytes, subject: str) -> None:
    """Refuse an IR that assigns a variable and never reads it, which OpenVINO cannot read."""
    variables: dict[bytes, set[bytes]] = {b"ReadValue": set(), b"Assign": set()}
    for kind, variable in _VARIABLE.findall(xml):
        variables[kind].add(variable)
    for variable in sorted(variables[b"Assign"] - variables[b"ReadValue"]):
        name = html.unescape(model_texts.text(variable))
        raise _refused(
            name,
            subject,
            found="assigned, but never read",
            expected="a ReadValue of it",
            hint="remove the Assign",
        )


def extract(model: ov.Model, subject: str) -> list[State]:
    """Replace the variables of a model by arguments; what they were, in the order of the arguments.

    Refuses with `ERROR_UNSUPPORTED_FEATURE` a state whose shape is not static or does not stay as it is (by
    the property `NPU_STATES_DYNAMIC`, see `dynamic_states`), several initial values or several assigned
    values of one variable, and variables inside of bodies.
    """
    readers: dict[str, list[Any]] = {}
    writers: dict[str, list[Any]] = {}
    find_accesses(model, readers, writers, subject)
    if not readers and not writers:
        return []
    names = sorted(readers)
    values = {name: _initial_value(readers[name], name, subject) for name in names}
    may_change = any(readers[name][0].output(0).partial_shape.is_dynamic for name in names)
    with _static_shapes(subject, may_change):
        parameters = [_as_parameter(readers[name], values[name], name, subject) for name in names]
        pairs = zip(names, parameters, strict=True)
        results = [_as_result(writers.get(name, []), parameter, name, subject) for name, parameter in pairs]
        model.add_parameters(parameters)
        for sink in list(model.get_sinks()):
            model.remove_sink(sink)
        model.add_results(results)
        for variable in list(model.get_variables()):
            model.remove_variable(variable)
        model.validate_nodes_and_infer_types()
        constants = _constants(model, {name: value for name, value in values.items() if value is not None})
    for name, parameter, result in zip(names, parameters, results, strict=True):
        _check_same(parameter.output(0), result.input_value(0), name, subject)
    zero = {
        name: bytes(parameter.get_element_type().size)
        for name, parameter in zip(names, parameters, strict=True)
    }
    return [
        State(name, values[name], zero[name] if values[name] is None else constants.get(name, b""))
        for name in names
    ]


@contextmanager
def _static_shapes(subject: str, may_change: bool) -> Iterator[None]:
    """Refuse what OpenVINO does not take, by the property for states whose shape changes if one may."""
    try:
        with openvino_errors(
            ZeResult.ERROR_UNSUPPORTED_FEATURE, f"{subject}, states", "states of fixed shapes"
        ):
            yield
    except Refused as error:
        if not may_change or error.info.property:
            raise
        raise Refused(msgspec.structs.replace(error.info, property=STATES_DYNAMIC)) from error


def originals(before: Sequence[Original], model: ov.Model, states: Sequence[State]) -> list[Original]:
    """Return the arguments before shapes and flags, with those added by `extract`."""
    inputs = len(model.inputs) - len(states)
    outputs = len(model.outputs) - len(states)
    read = [
        _original(port, READ_VALUE + state.variable)
        for port, state in zip(model.inputs[inputs:], states, strict=True)
    ]
    written = [
        _original(port, ASSIGN + state.variable)
        for port, state in zip(model.outputs[outputs:], states, strict=True)
    ]
    return [*before[:inputs], *read, *before[inputs:], *written]


def described(
    arguments: tuple[ArgumentMeta, ...], states: Sequence[State], subject: str
) -> tuple[tuple[ArgumentMeta, ...], tuple[StateMeta, ...]]:
    """Return the arguments of a graph with the names that states have, and its states.

    Refuses with `ERROR_UNSUPPORTED_FEATURE` an argument of the model that has such a name already.
    """
    named = list(arguments)
    described = []
    for state in states:
        indices = []
        for name in (READ_VALUE + state.variable, ASSIGN + state.variable):
            same = [index for index, argument in enumerate(named) if argument.friendly_name == name]
            others = [
                argument
                for index, argument in enumerate(named)
                if name in (argument.name, argument.node_name) and index not in same
            ]
            if len(same) != 1 or others:
                raise _refused(
                    state.variable,
                    subject,
                    found=f"an argument is called '{name}'",
                    expected="other names than those of states",
                )
            named[same[0]] = msgspec.structs.replace(named[same[0]], name=name, node_name=name, names=())
            indices.append(same[0])
        described.append(
            StateMeta(variable=state.variable, input=indices[0], output=indices[1], initial=state.initial)
        )
    return tuple(named), tuple(described)


def initial_values(
    model: ov.Model, arguments: Sequence[ArgumentMeta], states: Sequence[State], subject: str
) -> tuple[ov.Model, tuple[ArgumentMeta, ...]]:
    """Return the model that computes initial values, and its arguments.

    An output is named as the state's input of the main graph. Inputs are those of the main graph that the
    values depend on, states with constant initial values among them. Refuses with `ERROR_INVALID_ARGUMENT` a
    model without such values, with `ERROR_UNSUPPORTED_FEATURE` a value that depends on another such state.
    """
    computed = [state for state in states if not state.initial]
    if not computed:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            f"{subject}, property {STATES_INIT}",
            found="no state has an initial value that must be computed",
            expected=f"{STATES_INIT}=NO",
            property=STATES_INIT,
        )
    by_name = {argument.name: argument for argument in arguments if argument.input and argument.shape_of < 0}
    indices = {parameter.get_name(): index for index, parameter in enumerate(model.get_parameters())}
    parameters = _parameters(model, [state.value for state in computed])
    all_inputs = list(by_name.values())
    inputs = [all_inputs[indices[parameter.get_name()]] for parameter in parameters]
    for argument in inputs:
        _check_source(argument, computed, subject)
    results = []
    for state in computed:
        result = ov.op.Result(_as_begun(state.value))
        result.set_friendly_name(READ_VALUE + state.variable)
        results.append(result)
    outputs = [
        msgspec.structs.replace(by_name[READ_VALUE + state.variable], input=False) for state in computed
    ]
    initial = ov.Model(results, parameters, model.get_friendly_name())
    return initial, (*inputs, *outputs)


def check(arguments: Sequence[ArgumentMeta], states: Sequence[StateMeta]) -> str | None:
    """Return the error in the states of a blob from outside, or None."""
    used: set[int] = set()
    for state in states:
        pair = []
        for index, is_input, name in (
            (state.input, True, READ_VALUE + state.variable),
            (state.output, False, ASSIGN + state.variable),
        ):
            if not 0 <= index < len(arguments) or index in used:
                return f"variable '{state.variable}' is argument {index} of {len(arguments)}"
            used.add(index)
            argument = arguments[index]
            if argument.input != is_input or argument.name != name:
                return f"variable '{state.variable}' is argument '{argument.name}'"
            pair.append((argument.element_type, argument.shape, argument.byte_size))
        if pair[0] != pair[1]:
            return f"variable '{state.variable}' is read as {pair[0]}, assigned as {pair[1]}"
        if state.initial and pair[0][2] % len(state.initial):
            return f"variable '{state.variable}' of {pair[0][2]} bytes begins as {len(state.initial)}"
    behind: set[bool] = set()
    for index, argument in enumerate(arguments):
        if index in used:
            behind.add(argument.input)
        elif used and argument.name.startswith((READ_VALUE, ASSIGN)):
            return f"argument '{argument.name}' is of no variable"
        elif argument.input in behind and argument.shape_of < 0 and not argument.name.startswith(SEPARATED):
            return f"argument '{argument.name}' comes after those of states"
    return None


def variables(model: ov.Model) -> list[str]:
    """Return the ids of the variables that a model has as operations, in bodies too."""
    return [operation.get_variable_id() for operation, _ in _operations(model) if _is_access(operation)]


# ---------------------------------------------------------------- taking a model apart


def find_accesses(
    model: ov.Model, readers: dict[str, list[Any]], writers: dict[str, list[Any]], subject: str
) -> None:
    """Sort the accesses to variables by id; refuse those inside of bodies as unsupported."""
    for operation, body in _operations(model):
        if not _is_access(operation):
            continue
        kind, variable = operation.get_type_name(), operation.get_variable_id()
        if body:
            hint = "move it out, for example with LowLatency2"
            raise _refused(
                variable,
                subject,
                found=f"{kind} inside of '{body}'",
                expected="variables of the model",
                hint=hint,
            )
        (readers if kind == "ReadValue" else writers).setdefault(variable, []).append(operation)


def _operations(model: Any, body: str = "") -> Iterator[tuple[Any, str]]:
    """All operations, each with the name of the operation that it is a part of."""
    for operation in model.get_ordered_ops():
        yield operation, body
        for inner in bodies_of(operation):
            yield from _operations(inner, operation.friendly_name)


def _is_access(operation: Any) -> bool:
    return operation.get_type_name() in {"ReadValue", "Assign"}


def _initial_value(readers: Sequence[Any], name: str, subject: str) -> Any:
    """Return the output that gives the initial value; None for zeros."""
    initial_values = {
        _key(reader.input_value(0)): reader.input_value(0) for reader in readers if reader.get_input_size()
    }
    if len(initial_values) > 1 or (initial_values and any(not reader.get_input_size() for reader in readers)):
        raise _refused(
            name,
            subject,
            found=f"{len(readers)} ReadValue with different initial values",
            expected="one initial value",
        )
    return next(iter(initial_values.values()), None)


def _as_parameter(readers: Sequence[Any], value: Any, name: str, subject: str) -> Any:
    """Replace by an input every `ReadValue` of a variable."""
    port = readers[0].output(0)
    shape = port.partial_shape
    if shape.is_dynamic and value is not None and shape.compatible(value.partial_shape):
        shape = value.partial_shape  # a variable may be declared wider than what it begins with
    if shape.is_dynamic:
        found = f"dynamic shape {port.partial_shape}"
        raise _changes(name, subject, found=found, expected="a static shape")
    if value is not None and value.partial_shape != shape:
        found = f"shape {shape}, begins as {value.partial_shape}"
        raise _changes(name, subject, found=found, expected="equal shapes")
    parameter = ov.op.Parameter(port.get_element_type(), shape)
    parameter.set_friendly_name(READ_VALUE + name)
    for reader in readers:
        ov.utils.replace_node(reader, parameter)
    return parameter


def _as_result(writers: Sequence[Any], parameter: Any, name: str, subject: str) -> Any:
    """Replace by an output the `Assign` of a variable; without one the state is returned as it is."""
    source = parameter.output(0)
    for number, writer in enumerate(writers):
        value = writer.input_value(0)
        if number and _key(value) != _key(source):
            raise _refused(
                name, subject, found=f"{len(writers)} Assign with different values", expected="one of them"
            )
        source = value
        value.add_names(writer.output(0).get_names())
        for reader in list(writer.output(0).get_target_inputs()):
            reader.replace_source_output(value)
    result = ov.op.Result(_hidden(source, ASSIGN + name))
    result.set_friendly_name(ASSIGN + name)
    return result


def _hidden(value: Any, name: str) -> Any:
    """Return a value that the model does not show: a copy of it if it does.

    OpenVINO's CPU runtime does not fuse the operation before two results, and what it fuses it rounds once:
    with two results numbers would differ from those of the model with its variables.
    """
    shown = any(reader.get_node().get_type_name() == "Result" for reader in value.get_target_inputs())
    if not shown or not len(value.partial_shape):
        return value
    copy = opset13.concat([value], axis=0, name=f"{name}/copy")
    return copy.output(0)


def _check_same(read: Any, assigned: Any, name: str, subject: str) -> None:
    before, after = (
        f"{port.get_element_type().get_type_name()}{port.partial_shape}" for port in (read, assigned)
    )
    if before != after:
        found = f"read as {before}, assigned as {after}"
        raise _changes(name, subject, found=found, expected="one type and static shape")


def _constants(model: ov.Model, values: Mapping[str, Any]) -> dict[str, bytes]:
    """Those values that are constant and short enough when repeated, by name.

    Folded: with inputs of static shapes a value that depends on a shape is a constant.
    """
    if not values:
        return {}
    parameters = _parameters(model, list(values.values()))
    # folding replaces nodes, and those of an initial value may be used by the model too
    initial = ov.Model(
        [ov.op.Result(value) for value in values.values()], parameters, "initial values"
    ).clone()
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(initial)
    constants = {}
    for name, result in zip(values, initial.get_results(), strict=True):
        node = result.input_value(0).get_node()
        if node.get_type_name() == "Constant":
            repeated = _repeated(node)
            if repeated:
                constants[name] = repeated
    return constants


def _repeated(constant: Any) -> bytes:
    """The bytes that make this constant when they are repeated; empty if that is no short way to say it.

    In all constants of OpenVINO's CPU device subnormal numbers of f32 and its minus zero become zero, and
    integers of 64 bits the nearest of 32.
    """
    size = constant.get_element_type().size
    data = np.ascontiguousarray(constant.tensor_view.data).reshape(-1).view(np.uint8)
    if constant.get_element_type().bitwidth % 8 or not data.size:
        return bytes(size)
    if constant.get_element_type() == ov.Type.f32:
        data = _flushed(data)
    elif constant.get_element_type() in _INTEGERS:
        integers = data.view(_INTEGERS[constant.get_element_type()])
        data = integers.clip(max(_I32.min, np.iinfo(integers.dtype).min), _I32.max).view(np.uint8)
    elements = data.reshape(-1, size)
    if (elements == elements[0]).all():
        return bytes(elements[0])
    return bytes(data) if data.size <= _INLINE else b""


def _flushed(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Numbers of f32, zero for those whose exponent is."""
    numbers = data.view(np.uint32)
    return np.where(numbers & _F32_EXPONENT, numbers, 0).astype(np.uint32).view(np.uint8)


def _as_begun(value: Any) -> Any:
    """Return the value that a state begins as. A constant of f32 is copied if `_flushed` changes it."""
    node = value.get_node()
    if node.get_type_name() != "Constant" or node.get_element_type() != ov.Type.f32:
        return value
    data = np.ascontiguousarray(node.tensor_view.data).reshape(-1).view(np.uint8)
    flushed = _flushed(data)
    if (data == flushed).all():
        return value
    return opset13.constant(flushed.view(np.float32).reshape(node.shape)).output(0)


def _parameters(model: ov.Model, values: Sequence[Any]) -> list[Any]:
    """Return the inputs that values depend on, in the order of the model."""
    seen: set[str] = set()
    waiting = [value.get_node() for value in values]
    while waiting:
        node = waiting.pop()
        if node.get_name() not in seen:
            seen.add(node.get_name())
            waiting.extend(port.get_node() for port in node.input_values())
    return [parameter for parameter in model.get_parameters() if parameter.get_name() in seen]


def _original(port: Any, name: str) -> Original:
    return Original(name, tuple(port.get_shape()))


def _check_source(argument: ArgumentMeta, computed: Sequence[State], subject: str) -> None:
    """Refuse an argument that initial values cannot be computed from."""
    reason = ""
    if argument.is_dynamic:
        reason = f"computed from input '{argument.name}' of shape {argument.partial_shape}"
    if argument.name in {READ_VALUE + state.variable for state in computed}:
        reason = f"computed from variable '{argument.name.removeprefix(READ_VALUE)}', which is computed too"
    if reason:
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_FEATURE,
            f"{subject}, initial value of variable '{computed[0].variable}'",
            found=reason,
            expected="inputs of static shapes, and variables that begin as constants",
        )


def _key(port: Any) -> tuple[str, int]:
    return port.get_node().get_name(), port.get_index()


def _changes(variable: str, subject: str, *, found: str, expected: str) -> Refused:
    """Return the refusal of a state whose shape changes, by the property that allows it."""
    return refuse(
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        f"{subject}, variable '{variable}'",
        found=found,
        expected=expected,
        hint="give it one static shape, large enough; or use softnpu.plugin, which runs the model as it is"
        f" (by {STATES_DYNAMIC}=YES, with the shape of the state bound at each execution)",
        property=STATES_DYNAMIC,
    )


def _refused(variable: str, subject: str, *, found: str, expected: str, hint: str = "") -> Refused:
    return refuse(
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        f"{subject}, variable '{variable}'",
        found=found,
        expected=expected,
        hint=hint,
    )
