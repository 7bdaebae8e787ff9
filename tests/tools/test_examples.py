"""The examples run as they are written, and the README shows what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

_ROOT = Path(__file__).parents[2]
_MODULE = "softnpu.tools.examples.hello_npu"


def run_example(module: str) -> list[str]:
    """The lines that an example prints; it has to end well and to complain of nothing."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", module],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.splitlines()


def without_figures(line: str) -> str:
    """The line with every number as 0, and no more blanks than needed: times differ from run to run."""
    return re.sub(r"\s+", " ", re.sub(r"(0x[\da-f]+|[\d.]+)", "0", line))


def test_two_inferences_are_in_flight_and_both_digits_are_recognised(daemon: Daemon) -> None:
    lines = run_example(_MODULE)
    assert "submitted: 2 inferences, ended: 0" in lines
    assert "data copied: True, first inference begun: True" in lines
    assert [re.sub(r" \(.*", "", line) for line in lines if line.startswith("image")] == [
        "image 0: a 4",
        "image 1: a 2",
    ]
    assert lines[-1] == "everything is given back"
    assert daemon.engine().inferences == 2


def test_the_profile_shows_layers_with_times(daemon: Daemon) -> None:
    assert daemon.alive
    lines = run_example(_MODULE)
    first = next(number for number, line in enumerate(lines) if line.startswith("layer "))
    layers = lines[first + 1 : -1]
    assert len(layers) >= 4
    assert [line for line in layers if not re.search(r" (DPU|SW|DMA|NONE) +\d+ us$", line)] == []


def test_nothing_of_it_is_left_in_the_daemon(daemon: Daemon) -> None:
    run_example(_MODULE)
    wait_until(lambda: daemon.memory_used() == 0, what="memory given back")
    engine = daemon.engine()
    assert (engine.contexts, engine.queues, engine.graphs, engine.faults) == (0, 0, 0, 0)


def test_the_readme_shows_what_it_prints(daemon: Daemon) -> None:
    assert daemon.alive
    readme = (_ROOT / "README.md").read_text()
    (shown,) = re.findall(rf"\$ python -m {re.escape(_MODULE)}\n(.*?)```", readme, re.DOTALL)
    printed, expected = (
        [without_figures(line) for line in lines] for lines in (run_example(_MODULE), shown.splitlines())
    )
    # which layers there are is the affair of OpenVINO and of the processor
    profile = printed.index("layer type unit time")
    assert printed[: profile + 1] == expected[: profile + 1]
    assert printed[-1] == expected[-1]


def test_it_can_be_read_in_one_go() -> None:
    source = _ROOT / "tools" / "examples" / "hello_npu.py"
    assert len(source.read_text().splitlines()) <= 175
