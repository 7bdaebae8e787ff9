"""Clients killed thousands of times, at every step and moment: nobody else notices, nothing is left behind.

Their short form is in `tests/tools/test_stress.py`. `softnpu stress` compares every result of every client,
waits for the memory of each dead one, and at the end for descriptors, sessions and the supervisor's size.
"""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from softnpu.tools.stress.result import StressResult
from tests.soak.figures import loops, note

_CLIENTS, _SECONDS = 32, 600


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("more", ["", "--faults"], ids=["kill", "kill and faults"])
def test_clients_are_killed_a_thousand_times(more: str) -> None:
    words = f"stress --clients {_CLIENTS} --seconds {_SECONDS} --seed 1 --json --kill {more}".split()
    command = [sys.executable, "-m", "softnpu.tools.cli", *words]
    told = subprocess.run(command, capture_output=True, timeout=3000, check=False)
    result = msgspec.json.decode(told.stdout, type=StressResult)
    assert result.failures == []
    assert result.client_deaths >= loops()
    loop = f"client killed x{result.client_deaths}"
    note(loop, "memory back after", result.memory_back)
    note(loop, "results compared", result.results_checked)
    note(loop, "engines killed", result.engine_kills)
