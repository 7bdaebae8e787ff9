"""Every order of steps of small programs and the engine, and its death at each, keeps the guarantees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.model.checker import explore
from tests.model.defects import DEFECTS
from tests.model.scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_order_of_steps_keeps_the_guarantees(name: str) -> None:
    result = explore(SCENARIOS[name].model(name))

    assert result.finding is None, str(result.finding)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name: str) -> None:
    defect = DEFECTS[name]

    result = explore(SCENARIOS[defect.scenario].model(defect.scenario, *defect.switches))

    assert result.finding is not None, f"{name}: not found in {result.states} states"
    assert defect.found in result.finding.what
    print(f"{name}\n{result.finding}")  # shown with `pytest -s`, or if the line above fails


def test_every_switch_of_the_model_is_used_by_a_detected_defect() -> None:
    """A switch that no defect uses would be a part of the model that nothing proves to matter."""
    used = {switch for defect in DEFECTS.values() for switch in defect.switches}

    assert used == _switches()


def _switches() -> set[str]:
    sources = [
        path.read_text() for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_")
    ]
    return {found for source in sources for found in re.findall(r'\bhas\(\s*"([^"]+)"', source)}
