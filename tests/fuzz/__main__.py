"""`python -m tests.fuzz`: so many cases of each kind against a daemon of its own; 1 if that did wrong."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.fuzz.campaign import Plan, run


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    plan = Plan()
    for name in ("frames", "raw", "rings", "blobs", "weights_files"):
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=getattr(plan, name), help="cases (%(default)s)"
        )
    parser.add_argument("--seed", default=plan.seed, help="words that all chance comes from (%(default)s)")
    parser.add_argument("--jobs", type=float, default=plan.jobs, help="share of frames for the compiler")
    parser.add_argument("--replay", default="", metavar="KIND:NUMBER", help="only this round")
    parser.add_argument("--json", type=Path, help="write all that was counted into this file")
    given = parser.parse_args()
    chosen = Plan(
        given.frames,
        given.raw,
        given.rings,
        given.blobs,
        given.weights_files,
        given.seed,
        given.jobs,
        given.replay,
    )
    tally = run(chosen, lambda line: print(line, flush=True))
    found = tally.as_json()
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    print(tally.summary())
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
