"""`python -m tests.fuzz`: so many cases of each kind against a daemon of its own; 1 if that did wrong.

With `--models N`: so many random models instead, on OpenVINO's CPU device and on softnpu; 1 if they differ.
With `--exceptions N`: clients under stress instead, and exceptions at random ones of N lines of the daemon.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.fuzz.campaign import Plan, run
from tests.fuzz.exceptions import campaign as exceptions
from tests.fuzz.models import campaign as models
from tests.fuzz.shortage import LIMITS, become_bound


def main() -> int:
    """Parse and run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    plan = Plan()
    for name in ("frames", "raw", "rings", "blobs", "weights_files"):
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=getattr(plan, name), help="cases (%(default)s)"
        )
    parser.add_argument("--seed", default=plan.seed, help="words that all chance comes from (%(default)s)")
    parser.add_argument("--jobs", type=float, default=plan.jobs, help="share of frames for the compiler")
    parser.add_argument(
        "--replay",
        default="",
        metavar="KIND:NUMBER",
        help="only this round; of models SEED:NUMBER, or the folder of a saved finding",
    )
    parser.add_argument(
        "--json", type=Path, help="write all that was counted into this file (of models, while it runs too)"
    )
    parser.add_argument("--at", choices=LIMITS, default="", help="the daemon is at this limit meanwhile")
    _add_models(parser)
    _add_exceptions(parser)
    given = parser.parse_args()
    if given.models is not None:
        return _models(given)
    if given.exceptions is not None:
        return _exceptions(given)
    become_bound(given.at)
    chosen = Plan(
        given.frames,
        given.raw,
        given.rings,
        given.blobs,
        given.weights_files,
        given.seed,
        given.jobs,
        given.replay,
        given.at,
    )
    tally = run(chosen, lambda line: print(line, flush=True))
    found = tally.as_json()
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    print(tally.summary())
    return 1 if tally.violations else 0


def _add_models(parser: argparse.ArgumentParser) -> None:
    """Add the options of random models, besides --seed, --replay and --json."""
    group = parser.add_argument_group("random models")
    plan = models.Plan()
    group.add_argument("--models", type=int, metavar="N", help="so many random models, in place of all else")
    group.add_argument("--first", type=int, default=plan.first, help="number of the first one (%(default)s)")
    group.add_argument("--workers", type=int, default=plan.workers, help="side by side (%(default)s)")
    group.add_argument(
        "--ways",
        nargs="+",
        default=[],
        metavar="PART",
        help="only ways that contain one of these, such as native: or /reset; with --replay whole ones",
    )
    group.add_argument(
        "--each", type=int, default=plan.each, help="ways for each model, by chance; 0: all (%(default)s)"
    )
    group.add_argument(
        "--shrinks", type=int, default=plan.shrinks, help="findings to make small (%(default)s)"
    )
    group.add_argument("--shrink-s", type=float, default=plan.shrink_s, help="seconds for each (%(default)s)")
    group.add_argument("--stop", action="store_true", help="end with the first new difference")
    group.add_argument("--found", type=Path, help="folder to save what differs in, or what explains it")


def _add_exceptions(parser: argparse.ArgumentParser) -> None:
    """Add the options of exceptions at random lines, besides --seed and --json."""
    group = parser.add_argument_group("exceptions at random lines")
    plan = exceptions.Plan()
    group.add_argument(
        "--exceptions", type=int, metavar="LINES", help="at least so many lines, in place of all else"
    )
    group.add_argument("--every", type=int, default=plan.every, help="mean lines between two (%(default)s)")
    group.add_argument("--clients", type=int, default=plan.clients, help="at once (%(default)s)")
    group.add_argument("--run-s", type=float, default=plan.run_s, help="seconds of a run (%(default)s)")
    group.add_argument("--kill", action="store_true", help="kill clients, engines and workers as well")


def _exceptions(given: argparse.Namespace) -> int:
    """Raise exceptions at random lines; return 1 if they affected anyone but the work that raised them."""
    plan = exceptions.Plan(
        lines=given.exceptions,
        every=given.every,
        clients=given.clients,
        seed=given.seed,
        kill=given.kill,
        run_s=given.run_s,
        found=given.found,
    )
    tally = exceptions.run(plan, lambda line: print(line, flush=True))
    if given.json:
        given.json.write_text(json.dumps(tally.as_json(), indent=1))
    print(tally.summary())
    return 1 if tally.violations else 0


def _models(given: argparse.Namespace) -> int:
    """Run random models; return 1 for a difference that is not known."""
    plan = models.Plan(
        models=given.models,
        seed=given.seed,
        first=given.first,
        workers=given.workers,
        ways=tuple(given.ways),
        each=given.each,
        replay=given.replay,
        shrinks=given.shrinks,
        shrink_s=given.shrink_s,
        found=given.found,
        json=given.json,
        stop=given.stop,
    )
    tally = models.run(plan, lambda line: print(line, flush=True))
    if given.json:
        given.json.write_text(json.dumps(tally.as_json(), indent=1))
    print(tally.summary())
    return 0 if tally.good else 1


if __name__ == "__main__":
    sys.exit(main())
