"""The example of states runs as it is written, and its numbers are right."""

from __future__ import annotations

from pathlib import Path

from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.tools.test_examples import run_example

_ROOT = Path(__file__).parents[2]
_MODULE = "softnpu.tools.examples.states"


def test_it_prints_what_it_shows(daemon: Daemon) -> None:
    lines = run_example(_MODULE)
    assert lines[0] == "inputs: ['x'] states: <VariableState: 'last' f32[1]>"
    assert [line for line in lines if line.endswith("equal, bit by bit")] == [
        "8 chunks, one after the other: equal, bit by bit",
        "another listener begins anew: equal, bit by bit",
        "with the other's state it goes on there: equal, bit by bit",
        "after a reset it begins anew: equal, bit by bit",
    ]
    assert lines[-1] == "6 steps in place: 0 bytes copied, 2 buffers in turn"
    assert daemon.engine().staged_bytes == 0


def test_nothing_of_it_is_left_in_the_daemon(daemon: Daemon) -> None:
    run_example(_MODULE)
    wait_until(lambda: daemon.memory_used() == 0, what="memory given back")


def test_it_can_be_read_in_one_go() -> None:
    source = _ROOT / "tools" / "examples" / "states.py"
    assert len(source.read_text().splitlines()) <= 100
