"""Processes that a benchmark starts and talks to, line by line."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from softnpu.tools.shared.failures import ToolError

READY: Final = "ready"
_START_S: Final = 180.0
_END_S: Final = 60.0


class TalkingProcess:
    """A module as a program, which answers in lines. Its last argument is the process with which it dies."""

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments, str(os.getpid())],
            # CI: OpenVINO sends no telemetry, which it does from a forked process that outlives ours
            env={**(os.environ if environment is None else environment), "CI": "true"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for the caller, which ends it
        )
        self.pid = self._process.pid

    def wait_until_ready(self) -> None:
        """Return when it says so: what comes before is done."""
        words = self.hear(_START_S)
        if words != READY:
            raise self.failure(words)

    def hear(self, deadline_s: float) -> str:
        """The next line that it prints; empty when it has ended."""
        assert self._process.stdout is not None
        heard = select.select([self._process.stdout], [], [], deadline_s)[0]
        return self._process.stdout.readline().decode().strip() if heard else f"silent for {deadline_s:g} s"

    def say(self, line: str) -> None:
        """Send it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def failure(self, words: str) -> ToolError:
        """The error of a process that has said something else than what it should."""
        return ToolError(self._name, found=words or "it died", expected="inferences that end")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(_END_S)
        # not until the end of its output: a process that it has started may hold that open
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
