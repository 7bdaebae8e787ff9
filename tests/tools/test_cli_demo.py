"""`softnpu demo`: other processes compute on the emulated NPU, and every number equals the CPU device's."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import typer

from softnpu.tools.demo import cli
from softnpu.tools.demo.worker import Share
from tests.support.cli import softnpu
from tests.support.daemon import Daemon


def test_the_demonstration_succeeds_and_shows_its_steps(cli_daemon: Daemon) -> None:
    before = cli_daemon.engine()
    words = softnpu("demo").words
    engine = cli_daemon.engine()
    assert f"daemon {cli_daemon.pid}, engine {engine.engine_pid}" in words
    assert "all 3590 numbers equal OpenVINO's CPU device, bit by bit" in words
    assert "staged bytes  0 by the drivers, 0 by the engine" in words
    accuracy = re.search(r"accuracy +([\d.]+)%", words)
    assert accuracy is not None
    assert float(accuracy[1]) > 95
    assert engine.inferences - before.inferences == 359
    assert engine.staged_bytes == before.staged_bytes


@pytest.mark.usefixtures("cli_daemon")
def test_the_requested_number_of_processes_does_the_work() -> None:
    found = json.loads(softnpu("demo", "--processes", "3", "--json").words)
    assert len({client["pid"] for client in found["clients"]}) == 3
    assert sum(client["images"] for client in found["clients"]) == found["images"] == 359
    assert (found["identical"], found["largest_difference"]) == (True, 0.0)
    assert found["staged_by_driver"] == found["staged_by_engine"] == 0


def test_a_missing_daemon_that_may_not_be_started_is_one_line() -> None:
    assert "no socket there; expected a running daemon" in softnpu("demo").complaint


def test_a_single_wrong_bit_fails_the_demonstration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def clients(images: np.ndarray, _: int) -> list[Share]:
        probabilities = cli._reference(images, {})
        probabilities.view(np.uint32)[7, 3] ^= 1
        return [
            Share(
                probabilities=probabilities, times_s=[0.1] * len(images), compile_ms=1.0, platform="4000",
                config={}, pid=1, daemon_pid=2, engine_pid=3, staged_by_driver=0, staged_by_engine=0,
            )
        ]  # fmt: skip

    monkeypatch.setattr(cli, "_run_clients", clients)
    with pytest.raises(typer.Exit):
        cli.demo(processes=1)
    assert "numbers differ from OpenVINO's CPU device" in capsys.readouterr().out
