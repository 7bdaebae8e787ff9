"""The plan of a fuzzer: a dataclass whose fields are the options of its command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

Say = Callable[[str], None]


def option(default: Any, told: str, **more: Any) -> Any:
    """Return a field that is an option with this help; `more` is for `add_argument`."""
    return field(default=default, metadata={"help": told, **more})


@dataclass(frozen=True)
class CommonPlan:
    """What every fuzzer takes."""

    seed: str = option("0", "words that all chance comes from")
    replay: str = option("", "only this round, as a violation or finding names it", metavar="ROUND")
    found: Path | None = option(None, "folder for what differs, or explains it", type=Path)  # noqa: RUF009 - a field
    json: Path | None = option(None, "file for all that was counted", type=Path)  # noqa: RUF009 - a field


def add_options(parser: argparse.ArgumentParser, title: str, plan: type[CommonPlan]) -> None:
    """Add the options of a plan, besides those that another one has added. Those not given are left out."""
    group = parser.add_argument_group(title)
    for each in fields(plan):
        words = f"--{each.name.replace('_', '-')}"
        if words in parser._option_string_actions:
            continue
        more = dict(each.metadata)
        if isinstance(each.default, bool):
            more["action"] = "store_true"
        else:
            more.setdefault("type", type(each.default))
            more["help"] += f" ({each.default})" if each.default not in (None, "", ()) else ""
        group.add_argument(words, default=argparse.SUPPRESS, **more)


def plan_of(parser: argparse.ArgumentParser, given: dict[str, Any], plan: type[CommonPlan]) -> Any:
    """Return the plan with the given options; others than its own are an error."""
    foreign = given.keys() - {each.name for each in fields(plan)}
    if foreign:
        parser.error(f"{', '.join(sorted(foreign))}: no option of this fuzzer; see --help")
    return plan(**given)
