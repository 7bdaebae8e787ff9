"""Worker processes of benchmarks: a function prepares, then runs turns until its parent ends it.

    python -m softnpu.tools.bench.worker MODULE:FUNCTION START-JSON PARENT-PID

`FUNCTION(start)` imports and prepares; `start` is decoded by its annotation. It returns the function of a
turn, which takes a number and returns a struct. The worker prints `ready`, then one answer per turn, or one
line with the error.
"""

from __future__ import annotations

import importlib
import os
import sys
import typing
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Self, TypeVar

import msgspec

from softnpu.emulator.common import linux
from softnpu.tools.shared import failures
from softnpu.tools.shared.failures import ToolError

_Answer = TypeVar("_Answer", bound=msgspec.Struct)
_READY: Final = "ready"
_START_S: Final = 180.0
_END_S: Final = 60.0


class Worker:
    """One worker process, which dies with its parent. `function` is `MODULE:FUNCTION` below `tools.bench`.

    `apart`: in a session of its own. The kernel shares cores between sessions first (`sched_autogroup`).
    """

    def __init__(
        self,
        name: str,
        function: str,
        start: msgspec.Struct,
        environment: Mapping[str, str] | None = None,
        *,
        apart: bool = False,
    ) -> None:
        import subprocess  # here: the memory of workers is measured, and they start nothing

        self._name = name
        words = [f"{__package__}.{function}", msgspec.json.encode(start).decode(), str(os.getpid())]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.worker", *words],
            # CI: OpenVINO sends no telemetry, which it does from a forked process that outlives ours
            env={**(os.environ if environment is None else environment), "CI": "true"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=None if apart else 0,  # Ctrl-C is for the caller, which ends it
            start_new_session=apart,
        )
        self.pid = self._process.pid

    def wait_until_ready(self) -> None:
        """Wait until it is prepared. Raise `ToolError` with its reason."""
        if (words := self._hear(_START_S)) != _READY:
            raise self._failure(words)

    def begin(self, amount: float = 0) -> None:
        """Begin a turn."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%r\n" % amount)
        self._process.stdin.flush()

    def answer(self, kind: type[_Answer], deadline_s: float) -> _Answer:
        """Return the answer at the end of the turn. Raise `ToolError` with the reason if there is none."""
        words = self._hear(deadline_s)
        try:
            return msgspec.json.decode(words, type=kind)
        except msgspec.DecodeError:
            raise self._failure(words) from None

    def _hear(self, deadline_s: float) -> str:
        """Return its next line of output; empty when it has ended."""
        import select

        assert self._process.stdout is not None
        heard = select.select([self._process.stdout], [], [], deadline_s)[0]
        return self._process.stdout.readline().decode().strip() if heard else f"silent for {deadline_s:g} s"

    def _failure(self, words: str) -> ToolError:
        return ToolError(self._name, found=words or "it died", expected="inferences that end")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(_END_S)
        # not until the end of its output: a process started by it may hold that open
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def main(arguments: list[str]) -> int:
    """Serve one parent; print a user-fixable failure and return exit code 1."""
    name, start, parent = arguments
    linux.die_with_parent(int(parent))
    module, _, function_name = name.partition(":")
    function = getattr(importlib.import_module(module), function_name)
    try:
        turn = function(msgspec.json.decode(start, type=typing.get_type_hints(function)["start"]))
        print(_READY, flush=True)
        for line in sys.stdin:
            print(msgspec.json.encode(turn(float(line))).decode(), flush=True)
    except Exception as error:
        if not isinstance(error, (*failures.expected(), RuntimeError)):  # the second for OpenVINO's own
            raise
        print(failures.describe(error), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
