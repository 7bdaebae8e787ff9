"""Client programs in other processes. They die with the test, and every word of theirs has a deadline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from typing import IO, Any

from tests.support.waiting import DEADLINE_S, wait_readable

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
"""


class ClientProcess:
    """Python code with everything of `softnpu.driver` in reach, and `given`, `say(value)`, `hear()`."""

    def __init__(self, code: str, given: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _PRELUDE + textwrap.dedent(code),
                str(os.getpid()),
                json.dumps(dict(given)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self, deadline_s: float = 30.0) -> Any:
        """The next value that the client says."""
        output = self._pipe(self.process.stdout)
        assert wait_readable(output.fileno(), deadline_s), f"no word within {deadline_s:g} s"
        line = output.readline()
        assert line, f"the client ended with {self.process.wait(DEADLINE_S)} instead of saying something"
        return json.loads(line)

    def tell(self, value: object = None) -> None:
        """Go on: the client's `hear()` returns `value`."""
        pipe = self._pipe(self.process.stdin)
        pipe.write(json.dumps(value).encode() + b"\n")
        pipe.flush()

    def finish(self, deadline_s: float = 30.0) -> None:
        """Wait for a good end."""
        assert self.process.wait(deadline_s) == 0

    def kill(self) -> None:
        """SIGKILL, unless it has ended; then its pipes are closed."""
        self.process.kill()
        self.process.wait(DEADLINE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe
