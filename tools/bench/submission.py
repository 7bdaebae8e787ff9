"""A command list that a benchmark records once, submits and waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from softnpu.driver import CommandList, CommandQueue, Context, Fence
from softnpu.tools.shared.failures import ToolError

_DEADLINE_NS: Final = 120_000_000_000


class Submission:
    """One list with its fence, on `queue` or a queue of its own; `what` names it in errors."""

    def __init__(
        self,
        context: Context,
        record: Callable[[CommandList], object],
        what: str = "a submission",
        queue: CommandQueue | None = None,
    ) -> None:
        self.queue: CommandQueue = queue or context.create_command_queue()
        self.fence: Fence = self.queue.create_fence()
        self._what = what
        commands = context.create_command_list()
        record(commands)
        commands.close()
        self._lists = [commands]

    def start(self) -> None:
        """Submit it."""
        self.queue.execute_command_lists(self._lists, self.fence)

    def run(self) -> None:
        """Submit it and wait for its end. Raise `ToolError` if that does not come."""
        self.queue.execute_command_lists(self._lists, self.fence)
        # not by `wait`: round trips are timed to a tenth of a microsecond
        if not self.fence.host_synchronize(_DEADLINE_NS):
            raise _late(self._what)

    def wait(self) -> None:
        """Wait for its end. Raise `ToolError` if that does not come."""
        wait(self.fence, self._what)


def wait(fence: Fence, what: str) -> None:
    """Wait for a fence. Raise `ToolError` if it is not signalled."""
    if not fence.host_synchronize(_DEADLINE_NS):
        raise _late(what)


def _late(what: str) -> ToolError:
    return ToolError(what, found="not ended", expected=f"its end within {_DEADLINE_NS / 1e9:g} s")
