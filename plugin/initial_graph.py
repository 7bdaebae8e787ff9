"""The graph that computes the initial values of states: when a model needs one, and what it has to have."""

from __future__ import annotations

from collections.abc import Mapping

from softnpu.emulator.blob.container import ArgumentMeta, GraphMeta
from softnpu.emulator.compiler.options import STATES_INIT
from softnpu.plugin.errors import NpuError


def needs_initial(meta: GraphMeta) -> bool:
    """Return whether a model has states whose initial values come from another graph."""
    return not meta.dynamic_states and any(not state.initial for state in meta.states)


def initial_config(config: Mapping[str, str]) -> dict[str, str]:
    """Return the compiler's configuration for that graph, derived from the model's.

    Source and shapes are the same.
    """
    return {**config, "PERF_COUNT": "NO", STATES_INIT: "YES"}


def initial_arguments(main: GraphMeta, initial: GraphMeta | None) -> tuple[int, ...]:
    """Return, for each argument of the initial graph, the input of the main graph that shares its memory.

    Raises `NpuError` if the two do not match, and for a missing initial graph.
    """
    if initial is None:
        if needs_initial(main):
            name = next(state.variable for state in main.states if not state.initial)
            raise _mismatch(main, f"no graph that computes variable '{name}'")
        return ()
    inputs = {argument.name: index for index, argument in enumerate(main.arguments) if argument.input}
    wanted = {state.input for state in main.states if not state.initial}
    used = []
    for argument in initial.arguments:
        index = inputs.get(argument.name, -1)
        if index < 0 or _memory(main.arguments[index]) != _memory(argument):
            raise _mismatch(main, f"'{argument.name}' is no such input of the model")
        if argument.input == (index in wanted):
            raise _mismatch(main, f"'{argument.name}' is not what the graph has to compute")
        used.append(index)
    if not wanted <= set(used) or len(set(used)) != len(used):
        raise _mismatch(main, f"{len(initial.outputs)} values computed, {len(wanted)} needed")
    return tuple(used)


def _memory(argument: ArgumentMeta) -> tuple[str, tuple[int, ...], int]:
    return argument.element_type, argument.shape, argument.byte_size


def _mismatch(main: GraphMeta, problem: str) -> NpuError:
    return NpuError(
        f"model '{main.name}', initial values of its states: {problem}; expected the graph that "
        f"{STATES_INIT} makes of the same model. Compile the model again"
    )
