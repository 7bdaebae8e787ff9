"""`python -m tests.model [--deaths N] [--defects] [NAME]`: explore scenarios, show how defects appear."""

from __future__ import annotations

import argparse
from dataclasses import replace

from tests.model.checker import explore
from tests.model.defects import DEFECTS
from tests.model.scenarios import SCENARIOS


def main() -> int:
    """Explore the scenarios, or those with defects, whose name contains NAME."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="part of the name of a scenario or a defect")
    parser.add_argument("--deaths", type=int, help="how often the engine may die (default: once or twice)")
    parser.add_argument("--defects", action="store_true", help="put the known defects into the model")
    options = parser.parse_args()
    cases = (
        {name: (defect.scenario, defect.switches) for name, defect in DEFECTS.items()}
        if options.defects
        else {name: (name, ()) for name in SCENARIOS}
    )
    violated = False
    for name, (scenario, switches) in cases.items():
        if options.name not in name:
            continue
        chosen = SCENARIOS[scenario]
        if options.deaths is not None:
            chosen = replace(chosen, deaths=options.deaths)
        result = explore(chosen.model(scenario, *switches))
        print(f"{name}: {result.states} states", flush=True)
        if result.finding is not None:
            violated = True
            print(result.finding)
    return int(violated)


if __name__ == "__main__":
    raise SystemExit(main())
