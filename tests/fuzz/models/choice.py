"""The ways to run a model: one of all by chance, or as many as requested."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from tests.fuzz.dice import Dice
from tests.fuzz.models.case import Key
from tests.fuzz.models.records import Way
from tests.fuzz.models.traits import NO_BATCH_LEFT

PLAIN = Way("plugin", "plain", "one")
_COMPILED = {
    "plugin": {
        "plain": 5, "compiler": 4, "split": 1, "throughput": 4, "profiled": 1, "deferred": 1, "file": 2,
        "imported": 2, "imported file": 1, "weightless": 2, "weightless file": 1, "cached": 1,
        "cached small": 1, "driver cache": 1,
    },
    "native": {
        "plain": 5, "compiler": 2, "throughput": 2, "profiled": 1, "imported": 2, "weightless": 1,
        "cached": 1,
    },
}  # fmt: skip
_RUN = {
    "plugin": {
        "one": 20, "shared": 10, "fresh": 20, "inplace": 20, "set": 20, "many": 40, "queue": 10,
        "handover": 10, "remote": 20, "pair": 10, "reset": 1,
    },
    "native": {
        "one": 20, "fresh": 20, "inplace": 20, "set": 20, "many": 30, "queue": 10, "handover": 5, "reset": 1,
    },
}  # fmt: skip
_NATIVE = 0.3
_GIVEN = 0.25
"""The share of the models that crash OpenVINO's CPU device which softnpu runs: each costs processes."""
_BEYOND = ("more than 5 dimensions", "open without a bound")


def every(apis: Iterable[str] = _COMPILED) -> list[Way]:
    """Return all ways."""
    return [Way(api, compiled, run) for api in apis for compiled in _COMPILED[api] for run in _RUN[api]]


def chosen(key: Key, only: Sequence[str] = (), traits: Container[str] = (), each: int = 1) -> list[Way]:
    """Return the ways of one case. `only`: parts that its name must have, such as `native:` or `/reset`.

    `each`: how many to draw, 0: all. `traits` are the model's: those unsupported by OpenVINO's own plugin are
    seldom given to it.
    """
    dice = Dice("ways", key.seed, key.number)
    native = not any(one in traits for one in _BEYOND) or dice.chance(0.03)
    native &= NO_BATCH_LEFT not in traits
    apis = ("plugin", "native") if native else ("plugin",)
    if only:
        fitting = [way for way in every(apis) if any(part in str(way) for part in only)]
        return [dice.pick(fitting)] if fitting else []
    if not each:
        return every(apis)
    ways = []
    for _ in range(each):
        api = "native" if dice.chance(_NATIVE) and native else "plugin"
        compiled, run = (
            dice.choices(list(table[api]), list(table[api].values()))[0] for table in (_COMPILED, _RUN)
        )
        ways.append(Way(api, compiled, run))
    return [way for number, way in enumerate(ways) if way not in ways[:number]]


def is_given(key: Key) -> bool:
    """Return whether softnpu also runs this case if it kills OpenVINO's CPU device."""
    return Dice("given", key.seed, key.number).chance(_GIVEN)
