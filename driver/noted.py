"""The notes of this process for one daemon, and where the program has called the driver."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import deque
from pathlib import Path
from types import FrameType
from typing import Final

from softnpu.driver.access_watch import AccessWatch
from softnpu.emulator.interface import check_notes as notes
from softnpu.emulator.interface.check_notes import NoteFile

_FRAMES: Final = 16
_FOLDERS: Final = (Path(__file__).parent, Path(notes.__file__).parent, Path(__file__).parents[1] / "plugin")
_OURS: Final = tuple(f"{folder}{os.sep}" for folder in _FOLDERS)
_NOT_SHOWN: Final = (*_OURS, "<frozen ")


class Noted:
    """What this process notes for one daemon."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = NoteFile(directory, "client")
        self.sites: dict[tuple[str, ...], int] = {}
        self._lock = threading.Lock()
        self.collected: deque[notes.Ended] = deque()  # by finalizers, which run anywhere, even inside a note

    def write(self, note: notes.AnyNote) -> None:
        """Append a note, after what Python has collected."""
        with contextlib.suppress(IndexError):  # there are no more: another thread may take them too
            while True:
                self.file.write(self.collected.popleft())
        self.file.write(note)

    def site(self) -> int:
        """Return the number of the place in the program that has called the driver."""
        frames: list[str] = []
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and len(frames) < _FRAMES:
            code = frame.f_code
            if not code.co_filename.startswith(_NOT_SHOWN):
                frames.append(f"{code.co_filename}:{frame.f_lineno} {code.co_name}")
            frame = frame.f_back
        key = tuple(frames)
        number = self.sites.get(key)
        if number is None:
            with self._lock:
                number = self.sites.setdefault(key, len(self.sites) + 1)
            self.write(notes.Site(t=time.monotonic_ns(), site=number, frames=key))
        return number


def program_name() -> str:
    """Return the name of this program."""
    return Path(sys.argv[0] if sys.argv and sys.argv[0] else sys.executable).name


def stop_program(watch: AccessWatch) -> None:
    """Stop the program in its debugger, or with a signal."""
    if not watch.debugs:
        signal.raise_signal(signal.SIGTRAP)
        return
    from pdb import Pdb

    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_SHOWN):
        frame = frame.f_back
    if frame is not None:
        debugger = Pdb(skip=["bdb"])  # not in the next call
        debugger.set_trace(frame)
        debugger.set_next(frame)
