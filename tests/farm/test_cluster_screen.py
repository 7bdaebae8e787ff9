"""`softnpu top --farm` and `softnpu farm status` on Ray nodes that work, die, and end."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from softnpu import farm as public
from softnpu.tools.demo.digits import model_path
from softnpu.tools.farm import monitor
from softnpu.tools.farm.local import LocalFarm
from softnpu.tools.top.farm_app import FarmApp
from tests.support.waiting import DEADLINE_S

pytestmark = [pytest.mark.farm, pytest.mark.timeout(600)]
WITHIN_S = 240.0


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Checked when the farm ends: until then Ray opens and starts what it likes."""


def _printed(*arguments: str) -> str:
    """Return a command's output; not from a fork server, which would outlive the farm."""
    command = [sys.executable, "-P", "-m", "softnpu.tools.cli", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=WITHIN_S).stdout


def _rows(app: FarmApp) -> dict[str, list[str]]:
    """Return the rows of the table by platform, which differs for each node here."""
    table = app.query_one(DataTable)
    rows = [[str(cell).strip() for cell in table.get_row_at(row)] for row in range(table.row_count)]
    return {row[2]: row for row in rows}


def _head(app: FarmApp) -> str:
    return str(app.query_one("#head", Static).render())


async def _until(app: FarmApp, pilot: Pilot[None], holds: Callable[[], object]) -> None:
    end = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < end, (_head(app), _rows(app))
        await asyncio.wait_for(pilot.pause(0.05), DEADLINE_S)  # the screen never waits for Ray


def test_the_screen_shows_nodes_leases_and_rates_and_survives_deaths(
    farm: LocalFarm, images: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(monitor, "_HUNG_S", 15.0)
    farm.add(("4000", "4000"))
    dying = farm.add(("3720",))
    address = farm.address
    options: dict[str, Any] = {"num_cpus": 0, "resources": {public.resource("4000"): 1}}
    actor = ray.remote(public.Predictor).options(**options).remote(public.Model.of(model_path()))
    ray.get(actor.__call__.remote({"image": images[:1]}), timeout=WITHIN_S)

    told = json.loads(_printed("farm", "status", "--address", address, "--json"))["nodes"]
    assert {node["state"] for node in told} == {"alive"}
    assert [lease["share"] for node in told for lease in node["leases"]] == [1.0]
    printed = _printed("status", "--farm", "--address", address)
    assert "Predictor" in printed
    assert "leases" in printed

    app = FarmApp(address, 0.2)

    async def steps() -> None:
        async with app.run_test(size=(140, 24)) as pilot:
            await _until(app, pilot, lambda: {row[1] for row in _rows(app).values()} == {"alive"})
            assert _rows(app)["4000"][3:8] == ["2", "1", "1", "1", "1"]
            assert "Predictor" in _rows(app)["4000"][-1]
            assert _rows(app)["3720"][3:8] == ["1", "1", "0", "0", "0"]
            assert "2 nodes, 1 without devices" in _head(app)
            reference = actor.__call__.remote({"image": np.concatenate([images] * 5)})
            await _until(app, pilot, lambda: _rows(app)["4000"][8] not in ("-", "0.0"))
            await asyncio.to_thread(ray.get, reference, timeout=WITHIN_S)

            await asyncio.to_thread(farm.kill, dying)
            await _until(app, pilot, lambda: _rows(app)["3720"][1] != "alive")
            await _until(app, pilot, lambda: _rows(app)["3720"][1] == "dead")
            assert "1 node, 1 dead" in _head(app)
            assert _rows(app)["4000"][1] == "alive"

            await asyncio.to_thread(farm.close)
            await _until(app, pilot, lambda: app.problem.startswith(f"cluster {address}: "))
            await _until(app, pilot, lambda: "refused" in app.problem)
            await pilot.press("q")

    asyncio.run(steps())
    assert app.return_code == 0
