"""`python -m tests.model [--deaths N] [--defects] [NAME]`: explores, and tells how a defect shows itself."""

from __future__ import annotations

import argparse
from dataclasses import replace

from tests.model.checker import explore
from tests.model.defects import DEFECTS
from tests.model.scenarios import SCENARIOS


def main() -> int:
    """Explores the scenarios, or those with defects put into them, whose name has NAME in it."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="part of the name of a scenario or a defect")
    parser.add_argument("--deaths", type=int, help="how often the engine may die (default: once or twice)")
    parser.add_argument("--defects", action="store_true", help="put the known defects into the model")
    given = parser.parse_args()
    cases = (
        {name: (defect.scenario, defect.switches) for name, defect in DEFECTS.items()}
        if given.defects
        else {name: (name, ()) for name in SCENARIOS}
    )
    violated = False
    for name, (scenario, switches) in cases.items():
        if given.name not in name:
            continue
        chosen = SCENARIOS[scenario]
        if given.deaths is not None:
            chosen = replace(chosen, deaths=given.deaths)
        result = explore(chosen.model(scenario, *switches))
        print(f"{name}: {result.states} states", flush=True)
        if result.finding is not None:
            violated = True
            print(result.finding)
    return int(violated)


if __name__ == "__main__":
    raise SystemExit(main())
