"""States whose shape changes: they stay variables of the model, and become arguments of the graph alone.

The property `NPU_STATES_DYNAMIC` makes every state of a model one of these. OpenVINO's CPU runtime fuses
attention with its variables and rounds otherwise without them, so replacing them by inputs and outputs would
give other numbers. The engine gives each variable its value before an execution and takes it back afterwards
(`openvino/dynamic/states.py`).

The arguments have the names and the order of other states. Each has a shape tensor, also if its shape is
static: an execution that begins with the initial value has -1 for every dimension there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino as ov

from softnpu.emulator.blob.container import ASSIGN, READ_VALUE, ArgumentMeta, StateMeta
from softnpu.emulator.compiler import dynamic, states
from softnpu.emulator.compiler.options import STATES_DYNAMIC, STATES_INIT, WEIGHTLESS, Settings
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

# those that OpenVINO's CPU runtime keeps in variables; others end in an error or show garbage (2026.4)
_TYPES = {"f32": 32, "f16": 16, "bf16": 16, "i32": 32, "i8": 8, "u8": 8, "boolean": 8}


def described(
    model: ov.Model, arguments: Sequence[ArgumentMeta], subject: str
) -> tuple[tuple[ArgumentMeta, ...], tuple[StateMeta, ...]]:
    """Return the arguments of a graph with those of all variables of its model, and its states.

    `arguments` are those that the model has itself, with their shape tensors. Refuses with
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
        StateMeta(variable=name, input=index[READ_VALUE + name], output=index[ASSIGN + name])
        for name in names
    ]
    return ordered, tuple(kept)


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
