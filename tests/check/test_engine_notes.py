"""What a checked engine notes: when, and for how long it remembers it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from softnpu.emulator.engine.commands import program as programs
from softnpu.emulator.engine.commands.program import Program
from softnpu.emulator.engine.memory.mappings import Range
from softnpu.emulator.engine.running import checking
from softnpu.emulator.interface import check_notes as notes
from softnpu.emulator.interface.check_notes import NoteFile


class Nothing:
    """Takes any call."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any) -> Any:
        return self


def test_a_signal_is_noted_before_anybody_can_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = NoteFile(tmp_path, "engine")
    seen: list[notes.AnyNote] = []

    class Event(Nothing):
        def device_signal(self) -> None:
            seen.extend(notes.read(next(tmp_path.iterdir()).read_bytes()))

    monkeypatch.setattr(programs, "_signal", programs._signal)
    checking.note_signals(file)
    programs._signal(Event(), Range((1, 2), 64, 128), Nothing(), Nothing())  # type: ignore[arg-type]
    file.close()
    assert [type(note) for note in seen] == [notes.Signalled]


def test_a_program_that_the_engine_has_dropped_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "_describe", lambda *_: ())
    runner: Any = object.__new__(checking.CheckedRunner)
    runner._notes, runner._programs, runner._described_programs = NoteFile(tmp_path, "engine"), {}, 0
    program = Program(b"", frozenset(), (), 0, 0, journaled=False)
    assert runner._described(Nothing(), program) == runner._described(Nothing(), program) == (1, ())
    assert runner._programs
    del program
    assert not runner._programs
    runner._notes.close()
