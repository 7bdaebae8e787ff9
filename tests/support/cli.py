"""The `softnpu` command run as a user runs it: in another process, with its output and exit code."""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import forked
from tests.support.waiting import wait_readable

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
        """The single error line of a failed command; fails if there was more, or if the command succeeded."""
        return self._line(1)

    @property
    def misuse(self) -> str:
        """The single error line about a wrong command line; fails for any other end."""
        return self._line(2)

    def _line(self, code: int) -> str:
        lines = self.err.splitlines()
        assert self.code == code, (self.code, self.out, self.err)
        assert len(lines) == 1, self.err
        assert lines[0].startswith("softnpu: "), self.err
        return lines[0].removeprefix("softnpu: ")

    @property
    def words(self) -> str:
        """The output of a successful command; fails if the command failed."""
        assert self.code == 0, (self.code, self.out, self.err)
        return self.out


def softnpu(*arguments: str | Path, **environment: str) -> Finished:
    """Run `softnpu ARGUMENTS` to its end, in a forked process whose imports are done."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull, "rb") as nothing:
        process = forked.start(
            "tests.support.cli_process:run_command",
            *map(str, arguments),
            streams=(nothing.fileno(), out.fileno(), err.fileno()),
            environment={**_PLAIN, **environment},
        )
        try:
            code = process.wait(_DEADLINE_S)
            ended = True
        except subprocess.TimeoutExpired:
            process.kill()
            code, ended = process.wait(_DEADLINE_S), False
        out.seek(0)
        err.seek(0)
        finished = Finished(code, out.read().decode(), err.read().decode())
    assert ended, f"softnpu {arguments} still ran after {_DEADLINE_S:g} s: {finished}"
    return finished


def in_terminal(*arguments: str | Path, interrupt_at: str, **environment: str) -> tuple[str, int]:
    """Run a command in a terminal, press Ctrl-C once it shows a text; return its output and exit code."""
    program = "from softnpu.tools.start import main; main()"
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "r+b", buffering=0) as terminal:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, *map(str, arguments)],
            env={**os.environ, **_PLAIN, "CI": "true", "TERM": "xterm", **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - nothing is locked
        )
        os.close(theirs)
        text, pressed = "", False
        while True:
            assert wait_readable(terminal.fileno(), _DEADLINE_S), text
            try:
                text += terminal.read(65536).decode(errors="replace")
            except OSError:  # the last process on the terminal has ended
                return text, process.wait(_DEADLINE_S)
            if interrupt_at in text and not pressed:
                pressed = True
                terminal.write(b"\x03")


def run_program(program: Path, *arguments: str | Path, **environment: str) -> Finished:
    """Run a Python program that calls the command's `main` in altered surroundings."""
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
