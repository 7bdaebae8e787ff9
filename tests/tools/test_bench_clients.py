"""`softnpu bench clients`: several processes at once, the figures that it gives, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from softnpu.tools.bench import clients
from softnpu.tools.bench.clients_process import Answer, Runner
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.bench.result import Measurement
from softnpu.tools.failures import ToolError
from tests.support.cli import softnpu


@pytest.fixture
def few() -> list[str]:
    """Options for a short run."""
    return ["-n", "2", "--rounds", "1", "--seconds", "0.2"]


def test_clients_are_compared_with_one_and_with_as_many_processes_of_openvino(
    private_dir: Path, digits: Path, few: list[str]
) -> None:
    folder = private_dir / "tmp"
    folder.mkdir()
    lines = softnpu("bench", "clients", digits, *few, "--json", TMPDIR=str(folder)).words.splitlines()
    assert list(folder.iterdir()) == []
    found = [msgspec.json.decode(line, type=Measurement) for line in lines]
    total = "digits: total throughput, 2 processes"
    assert [(row.metric, row.peer, row.target) for row in found[:2]] == [
        (total, "OpenVINO CPU, 1 process", 0.95),
        (total, "OpenVINO CPU, 2 processes", None),
    ]
    assert all(row.value > 0 and row.peer_value for row in found[:3])
    assert found[0].value == found[1].value
    assert [(row.metric, row.value, row.ok) for row in found[3:]] == [
        ("digits: staged bytes", 0, True),
        ("digits: processes with outputs that differ", 0, True),
    ]


class _Scripted(Runner):
    """A process that answers what it is told to."""

    def __init__(self, count: int, seconds: float) -> None:
        self._answer = Answer(count, seconds, 0, "same")
        self.turns: list[float] = []

    def go(self, seconds: float) -> None:
        self.turns.append(seconds)

    def answer(self, seconds: float) -> Answer:
        assert self.turns[-1] == seconds
        return self._answer


def test_the_total_counts_all_inferences_until_the_last_has_ended() -> None:
    last: dict[str, list[Answer]] = {}
    runners = [_Scripted(10, 1.0), _Scripted(30, 2.0)]
    assert clients._turn("ours", runners, 1.0, last) == 20
    assert [answer.count for answer in last["ours"]] == [10, 30]


def test_a_client_that_fails_tells_why(private_dir: Path) -> None:
    path = private_dir / "broken.xml"
    path.write_text("<net")
    failing = Runner("openvino", BenchModel("broken", path, {}), "f32", private_dir / "none.sock")
    with failing, pytest.raises(ToolError, match="client through openvino: "):
        failing.wait_until_ready()
