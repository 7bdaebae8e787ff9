"""The benchmarks of `softnpu bench` without a command, as short as their medians are stable."""

from __future__ import annotations

from typing import Final

from softnpu.tools.bench import (
    clients,
    copies,
    counters,
    infer,
    language_model,
    lists,
    load,
    memory,
    native,
    neighbours,
    recovery,
    scale,
    start,
    submit,
    tokens,
    weights,
)
from softnpu.tools.bench.model import BenchModel, find_model
from softnpu.tools.bench.progress import Step

DEFAULT_MODEL: Final = "yolov8n"
DEFAULT_MEMORY_MODEL: Final = "minilm"
DIGITS: Final = "digits"
_GIB: Final = 1 << 30


def steps(big: bool) -> list[Step]:
    """Return the benchmarks, with the seconds that each takes on two cores."""
    return [
        Step("submit", 10, lambda: submit.run(3000)),
        Step("native", 10, lambda: native.run(3000), native=True),
        Step("start", 20, lambda: start.run(_model(DIGITS), 5), native=True),
        Step(
            "tokens", 15, lambda: tokens.run(language_model.LAYERS, language_model.WIDTH, 32, 7), native=True
        ),
        Step("infer", 15, lambda: infer.run(_model(DIGITS), 20000, 0, "f32")),
        Step("infer", 31, lambda: infer.run(_model(DEFAULT_MODEL), 300, 0, "f32")),
        Step("clients", 21, lambda: clients.run(_model(DIGITS), 8, 5, 1.0, "f32")),
        Step("clients", 24, lambda: clients.run(_model(DEFAULT_MODEL), 8, 5, 1.0, "f32")),
        Step("load", 75, lambda: load.run(_model(DEFAULT_MODEL), 2)),
        Step("memory", 45, lambda: memory.run(_model(DEFAULT_MEMORY_MODEL), 4, True)),
        Step("lists", 4, lambda: lists.run(1000, 30)),
        Step("copy", 3, lambda: copies.run(256 * 2**20, 5)),
        Step("recovery", 10, lambda: recovery.run(1)),
        *(_BIG if big else ()),
    ]


def counted() -> list[Step]:
    """Return the step of `--counters`."""
    return [Step("counters", 0, lambda: counters.run((), 500))]


_BIG: Final = (
    Step("weights", 120, lambda: weights.run(2 * _GIB, 1)),
    Step("clients", 90, lambda: clients.run(_model(DEFAULT_MODEL), 64, 3, 4.0, "f32")),
    Step("neighbours", 45, lambda: neighbours.run(9, 0.2)),
    Step("scale", 300, lambda: scale.run((), 0)),
)
"""Those that take minutes, and up to 10 GiB."""


def _model(name: str) -> BenchModel:
    return find_model(name, ())
