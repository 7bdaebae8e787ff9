"""`softnpu demo`: other processes compute on the emulated NPU, and every number is the CPU device's."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import pytest

from tests.support.cli import softnpu
from tests.support.daemon import Daemon


def test_the_demonstration_ends_well_and_shows_what_happened(daemon: Daemon) -> None:
    words = softnpu("demo").words
    engine = daemon.engine()
    assert f"daemon {daemon.pid}, engine {engine.engine_pid}" in words
    assert "all 3590 numbers equal OpenVINO's CPU device, bit by bit" in words
    assert "staged bytes  0 by the drivers, 0 by the engine" in words
    accuracy = re.search(r"accuracy +([\d.]+)%", words)
    assert accuracy is not None
    assert float(accuracy[1]) > 95
    assert engine.inferences == 359
    assert engine.staged_bytes == 0


def test_the_work_is_done_by_as_many_other_processes_as_asked_for(daemon: Daemon) -> None:
    words = softnpu("demo", "--processes", "3").words
    clients = re.findall(r"(\d+) \((\d+) images\)", words)
    assert len({pid for pid, _ in clients}) == 3
    assert sum(int(count) for _, count in clients) == 359
    assert daemon.engine().inferences == 359


def test_without_a_daemon_that_may_be_started_it_says_so_in_one_line() -> None:
    assert "no socket there; expected a running daemon" in softnpu("demo").complaint


@pytest.mark.usefixtures("cli_daemon")
def test_a_single_wrong_bit_fails_the_demonstration() -> None:
    program = """
    import numpy as np
    from softnpu.tools.demo import cli

    honest = cli._reference

    def seeded(*arguments):
        reference = honest(*arguments)
        reference.view(np.uint32)[7, 3] ^= 1
        return reference

    cli._reference = seeded
    cli.demo(processes=1)
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode != 0
    assert "numbers differ from OpenVINO's CPU device" in done.stdout
