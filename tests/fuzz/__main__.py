"""`python -m tests.fuzz`: so many cases of each kind against a daemon of its own; 1 if that did wrong.

With `--models N`: so many random models instead, on OpenVINO's CPU device and on softnpu; 1 if they differ.
With `--kernels N`: so many random kernels instead, in their process.
With `--exceptions N`: clients under stress instead, and exceptions at random ones of N lines of the daemon.
"""

from __future__ import annotations

import argparse
import json
import sys
from types import ModuleType

from tests.fuzz import campaign
from tests.fuzz.exceptions import campaign as exceptions
from tests.fuzz.kernels import campaign as kernels
from tests.fuzz.models import campaign as models
from tests.fuzz.plan import add_options, plan_of

FUZZERS: dict[str, tuple[str, ModuleType]] = {
    "": ("hostile clients", campaign),
    "models": ("random models", models),
    "kernels": ("random kernels", kernels),
    "exceptions": ("exceptions at random lines", exceptions),
}
"""By the option that chooses it: its title, and a module with `Plan` and `run`."""


def main() -> int:
    """Run the fuzzer that the command line chooses; return 1 if it found something."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for title, fuzzer in FUZZERS.values():
        add_options(parser, title, fuzzer.Plan)
    given = vars(parser.parse_args())
    _, fuzzer = FUZZERS[next((name for name in FUZZERS if name in given), "")]
    plan = plan_of(parser, given, fuzzer.Plan)
    tally = fuzzer.run(plan, lambda line: print(line, flush=True))
    if plan.json:
        plan.json.write_text(json.dumps(tally.as_json(), indent=1))
    print(tally.summary())
    return 0 if tally.good else 1


if __name__ == "__main__":
    sys.exit(main())
