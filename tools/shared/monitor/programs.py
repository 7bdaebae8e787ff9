"""The name of the program behind a session: the interpreted program, not the interpreter."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from softnpu.emulator.common.model_texts import listed
from softnpu.emulator.common.process_identity import start_time

if TYPE_CHECKING:
    from softnpu.emulator.interface.messages import SessionActivity

_WIDTH: Final = 40
_MOST_BYTES: Final = 65536
_READ_S: Final = 0.5
_WITH_VALUE: Final = frozenset(("-X", "-W", "--check-hash-based-pycs"))


class Programs:
    """Names and command lines of programs; each process is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], list[str]] = {}

    def name(self, session: SessionActivity) -> str:
        """Return the script, module or program of a session."""
        return listed(_program(self.command(session)) or session.client, _WIDTH)

    def command(self, session: SessionActivity) -> list[str]:
        """Return its process's command line; empty if the process is unreadable or has been replaced."""
        key = session.pid, session.start_time
        if key not in self._known:
            # a process can block readers of its command line, which lies in its memory: it is asked once, and
            # the list stays empty if the thread has not come back
            self._known[key] = []
            thread = threading.Thread(target=self._read, args=key, daemon=True)
            thread.start()
            thread.join(_READ_S)
        return self._known[key]

    def keep(self, sessions: list[SessionActivity]) -> None:
        """Forget all processes but those of these sessions."""
        keys = {(session.pid, session.start_time) for session in sessions}
        self._known = {key: words for key, words in self._known.items() if key in keys}

    def _read(self, pid: int, started: int) -> None:
        try:
            if not started or start_time(pid) != started:
                return
            with Path(f"/proc/{pid}/cmdline").open("rb") as file:
                words = file.read(_MOST_BYTES).decode(errors="replace").split("\0")
            if start_time(pid) == started:
                # the last word ends with a NUL too: behind it is an empty one
                self._known[pid, started] = words[:-1]
        except (OSError, ValueError, IndexError):
            return


def _program(words: list[str]) -> str:
    """Return an interpreter's script, module or -c. Empty for a program that is not Python."""
    interpreter = words[0].rpartition("/")[2] if words else ""
    if not interpreter.startswith("python"):
        return ""
    rest = iter(words[1:])
    for word in rest:
        if word in ("-m", "-c"):
            return f"{interpreter} {word} {next(rest, '')}".partition("\n")[0]
        if word in _WITH_VALUE:
            next(rest, "")
        elif word == "-":
            return f"{interpreter} -"
        elif not word.startswith("-"):
            return word.rpartition("/")[2]
    return interpreter
