"""A mutable command list: arguments of recorded inferences can change after it is closed."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from softnpu.driver.block import Block
from softnpu.driver.command_list import CommandList
from softnpu.driver.errors import invalid_argument
from softnpu.driver.handle import Handle
from softnpu.driver.submissions import Submission
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface.commands import MemoryAt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from softnpu.driver.context_base import ContextBase
    from softnpu.driver.memory import MemoryRef

MUTABLE_GRAPH_ARGUMENTS = 128
"""`ZE_MUTABLE_COMMAND_EXP_FLAG_GRAPH_ARGUMENTS`: the only kind of mutation that the device supports."""
_FEW = 64
_OLD_GRAPH_ARGUMENTS = 64  # its value before version 1.1 of the extension; the real driver takes both


class MutationKind(enum.Enum):
    """What a mutation changes."""

    GRAPH_ARGUMENT = "graph argument"
    STRIDES = "strides"


class Mutation(NamedTuple):
    """One link of `ze_mutable_commands_exp_desc_t`: new memory or new strides for an argument.

    `command` is an id from `get_next_command_id`, `argument` the index in the graph. An argument's strides
    follow its memory; memory without strides means a dense tensor.
    """

    kind: MutationKind
    command: int
    argument: int
    memory: MemoryRef = None
    strides: tuple[int, ...] = ()


class CommandListMutable(CommandList):
    """A list created with the mutable descriptor."""

    def __init__(self, context: ContextBase) -> None:
        super().__init__(context)
        self._ids: set[int] = set()
        self._changed = False
        self._most_used = _FEW

    def get_next_command_id(self, flags: int = MUTABLE_GRAPH_ARGUMENTS) -> int:
        """`zeCommandListGetNextCommandIdExp`: return the id of the next command appended."""
        call = "zeCommandListGetNextCommandIdExp"
        self._check(call)
        if self._closed or flags not in (MUTABLE_GRAPH_ARGUMENTS, _OLD_GRAPH_ARGUMENTS):
            raise invalid_argument(
                call,
                "command list",
                found=f"{'closed' if self._closed else 'open'}, flags {flags:#x}",
                expected=f"an open list and the flag GRAPH_ARGUMENTS ({MUTABLE_GRAPH_ARGUMENTS:#x})",
            )
        number = len(self._commands)
        self._ids.add(number)
        return number

    def update_mutable_commands(self, mutations: Sequence[Mutation], flags: int = 0) -> None:
        """`zeCommandListUpdateMutableCommandsExp`: take effect with the next submission of the list.

        Raises `ZeError` with INVALID_ARGUMENT, changing nothing, for an open list, unknown ids or arguments,
        flags, an empty chain, or strides that do not follow their argument.
        """
        call = "zeCommandListUpdateMutableCommandsExp"
        self._check(call)
        if flags or not mutations or not self._closed:
            raise invalid_argument(
                call,
                "mutation",
                found=f"flags {flags}, {len(mutations)} changes, list {'closed' if self._closed else 'open'}",
                expected="no flags, at least one change, a closed list",
            )
        changed: dict[int, cmd.GraphExecute] = {}
        used: list[Block] = []
        placed: set[tuple[int, int]] = set()
        for mutation in mutations:
            position, before = self._find(call, mutation)
            command = changed.get(position, before)
            if mutation.kind is MutationKind.GRAPH_ARGUMENT:
                block, offset = self.context._memory.resolve(call, mutation.memory)
                used.append(block)
                placed.add((position, mutation.argument))
                changed[position] = _with_place(command, mutation.argument, MemoryAt(block.handle, offset))
            elif (position, mutation.argument) in placed:
                changed[position] = _with_strides(command, mutation.argument, mutation.strides)
            else:
                raise invalid_argument(
                    call,
                    f"strides of argument {mutation.argument}",
                    found="no new place before them",
                    expected="the place of the argument first",
                )
        for position, command in changed.items():
            self._commands[position] = command
        # submissions in flight hold the list of used objects: it is replaced, not changed
        self._used = [*self._used, *used]
        if len(self._used) > self._most_used:
            self._forget_unused()
        self._changed = True

    def reset(self) -> None:
        """`zeCommandListReset`: also forgets all ids."""
        super().reset()
        self._ids.clear()
        self._changed = False
        self._most_used = _FEW

    def _prepare(self, call: str, queue: Handle) -> Submission | None:
        """Return what `queue` executes, after writing pending changes into the buffer."""
        if self._changed and not self.destroyed:
            self._forget_unused()
            self._encode(call)
            self._changed = False
        return super()._prepare(call, queue)

    def _forget_unused(self) -> None:
        """Release memory that no command uses any more."""
        named = {place.memory for command in self._commands for place in cmd.places(command)}
        used = {id(one): one for one in self._used if not isinstance(one, Block) or one.handle in named}
        self._used = list(used.values())
        self._most_used = 2 * len(used) + _FEW  # the cost of a mutation is independent of the list's length

    def _find(self, call: str, mutation: Mutation) -> tuple[int, cmd.GraphExecute]:
        """Return position and command for an id: the first inference recorded at or after it."""
        if mutation.command in self._ids:
            following = inference_after(self._commands, mutation.command)
            if following is not None:
                position, command = following
                if 0 <= mutation.argument < len(command.arguments):
                    return position, command
        raise invalid_argument(
            call,
            f"command id {mutation.command}, argument {mutation.argument}",
            found="not known of this list",
            expected="an id from get_next_command_id, and an argument of its graph",
        )


def inference_after(commands: Sequence[cmd.Command], start: int) -> tuple[int, cmd.GraphExecute] | None:
    """Return the inference recorded by the append after `start` commands (its waits come before it)."""
    for position in range(start, len(commands)):
        command = commands[position]
        if isinstance(command, cmd.GraphExecute):
            return position, command
        if not isinstance(command, cmd.EventWait):
            return None
    return None


def _with_place(command: cmd.GraphExecute, argument: int, at: MemoryAt) -> cmd.GraphExecute:
    arguments = list(command.arguments)
    arguments[argument] = at
    strides = tuple(entry for entry in command.strides if entry[0] != argument)
    return command._replace(arguments=tuple(arguments), strides=strides)


def _with_strides(command: cmd.GraphExecute, argument: int, strides: tuple[int, ...]) -> cmd.GraphExecute:
    return command._replace(strides=(*command.strides, (argument, strides)))
