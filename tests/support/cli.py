"""The `softnpu` command as a person runs it: another process, its words and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_DEADLINE_S = 90.0
# wide enough that no table cell is folded, plain so that tests compare words and not colours
_PLAIN = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line that a failed command says; fails when it said more, or did not fail."""
        lines = self.err.splitlines()
        assert self.code == 1, (self.code, self.out, self.err)
        assert len(lines) == 1, self.err
        assert lines[0].startswith("softnpu: "), self.err
        return lines[0].removeprefix("softnpu: ")

    @property
    def words(self) -> str:
        """What a command that went well printed; fails when it did not go well."""
        assert self.code == 0, (self.code, self.out, self.err)
        return self.out


def softnpu(*arguments: str | Path, **environment: str) -> Finished:
    """Runs `softnpu ARGUMENTS` to its end."""
    return _finished(["-m", "softnpu.tools.cli", *map(str, arguments)], environment)


def run_program(program: Path, *arguments: str | Path, **environment: str) -> Finished:
    """Runs a Python program that calls the command's `main` in an altered surrounding."""
    return _finished([str(program), *map(str, arguments)], environment)


def _finished(command: Sequence[str], environment: Mapping[str, str]) -> Finished:
    done = subprocess.run(
        [sys.executable, "-P", *command],
        env={**os.environ, **_PLAIN, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)
