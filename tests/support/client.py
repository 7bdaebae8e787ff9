"""Client programs in other processes. They die with the test, and every reply has a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

from tests.support import forked
from tests.support.waiting import DEADLINE_S, wait_readable

_STDERR = 2
_FUNCTION = f"{__name__}:run_client"
_PRELUDE = """
import json, os, sys, time
from pathlib import Path
from softnpu.emulator.common import linux
linux.die_with_parent(int(sys.argv[1]))
import numpy as np
from softnpu.driver import *
given = json.loads(sys.argv[2])
def say(value):
    print(json.dumps(value), flush=True)
def hear():
    return json.loads(sys.stdin.readline())
def recorded(context, *records):
    commands = context.create_command_list()
    for record in records:
        record(commands)
    commands.close()
    return commands
def load(context, source):
    graph = context.create_graph(source)
    graph.initialize()
    memory = [context.alloc_host(argument.byte_size) for argument in graph.meta.arguments]
    for index, place in enumerate(memory):
        graph.set_argument_value(index, place)
    return graph, memory
"""


class ClientProcess:
    """A process running Python code with `softnpu.driver`, `given`, `say(value)` and `hear()` in scope.

    `recorded(context, *records)` returns a closed list, `load(context, source)` a graph with bound memory.
    `interpreter`: start a fresh interpreter with minimal imports.
    """

    def __init__(
        self,
        code: str,
        given: Mapping[str, Any],
        environment: Mapping[str, str],
        *,
        interpreter: bool = False,
    ) -> None:
        words = (_PRELUDE + textwrap.dedent(code), json.dumps(dict(given)))
        their_stdin, our_stdin = os.pipe()
        our_stdout, their_stdout = os.pipe()
        self.process: forked.ForkedProcess | subprocess.Popen[bytes]
        try:
            if interpreter:
                program, given_text = words
                self.process = subprocess.Popen(
                    [sys.executable, "-c", program, str(os.getpid()), given_text],
                    stdin=their_stdin,
                    stdout=their_stdout,
                    env={**os.environ, **environment},
                )
            else:
                streams = (their_stdin, their_stdout, _STDERR)
                self.process = forked.start(_FUNCTION, *words, streams=streams, environment=environment)
        finally:
            os.close(their_stdin)
            os.close(their_stdout)
            self._stdin = os.fdopen(our_stdin, "wb")
            self._stdout = our_stdout
            self._heard = b""  # read, and not asked for yet

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self, deadline_s: float = 30.0) -> Any:
        """Return the next value that the client says."""
        while b"\n" not in self._heard:
            assert wait_readable(self._stdout, deadline_s), f"no word within {deadline_s:g} s"
            data = os.read(self._stdout, 1 << 20)
            assert data, f"the client ended with {self.process.wait(DEADLINE_S)} instead of saying something"
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return json.loads(line)

    def tell(self, value: object = None) -> None:
        """Make the client's `hear()` return `value`."""
        self._stdin.write(json.dumps(value).encode() + b"\n")
        self._stdin.flush()

    def finish(self, deadline_s: float = 30.0) -> None:
        """Wait for a successful exit."""
        assert self.process.wait(deadline_s) == 0

    def kill(self) -> None:
        """Send SIGKILL if the process still runs, then close its pipes."""
        self.process.kill()
        self.process.wait(DEADLINE_S)
        with contextlib.suppress(BrokenPipeError):  # a word that the client did not read
            self._stdin.close()
        if self._stdout >= 0:
            os.close(self._stdout)
            self._stdout = -1


def run_client(arguments: list[str], _descriptors: list[int]) -> int:
    """Run a client's code as the main program of this process."""
    code, given = arguments
    sys.argv = ["-c", str(os.getppid()), given]
    exec(compile(code, "<client>", "exec"), {"__name__": "__main__"})
    return 0
