"""The examples of weights: they run as they are written, and everything that they claim is true."""

from __future__ import annotations

from tests.support.daemon import Daemon
from tests.tools.test_examples import run_example, without_figures


def test_a_model_without_weights_finds_them_again_and_refuses_others(daemon: Daemon) -> None:
    lines = run_example("softnpu.tools.examples.weightless")
    assert without_figures(lines[0]) == "weights 0 KiB, compiled model 0 KiB"
    assert lines[1].startswith("requires platform=4000;")
    assert lines[2:] == [
        "runs here: True",
        "imported, weights where they were: True",
        "imported, weights moved: True",
        "imported, weights of the model: True",
        "other weights are refused: True",
    ]
    assert daemon.alive


def test_deferred_weights_load_with_the_first_request(daemon: Daemon) -> None:
    lines = run_example("softnpu.tools.examples.deferred_load")
    assert [without_figures(line) for line in lines[:4]] == [
        "exported 0 MiB",
        "imported in 0 ms, loaded in 0 ms, 0 MiB on the device",
        "first request in 0 ms, of which the load took 0 ms",
        "0 MiB on the device",
    ]
    assert "loaded in 0 ms, 0 MiB" in lines[1]
    assert lines[3] == "64 MiB on the device"
    assert lines[4:] == [
        "the numbers are right: True",
        "spoiled weights are noticed by the first request: True",
    ]
    assert daemon.alive
