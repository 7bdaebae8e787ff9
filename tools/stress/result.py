"""The result: failures and reasons, how to reproduce them, and the figures; as text and as JSON."""

from __future__ import annotations

from typing import Final

from softnpu.tools.stress.coordinator import Counts, State
from softnpu.tools.stress.daemon_usage import Growth, growths
from softnpu.tools.stress.reclaim_latency import NOTICE_LIMIT_S, Death, Times
from softnpu.tools.stress.reports import Failure

GROWTH_LIMIT: Final = 0.05
ALLOWANCE: Final = {"supervisor": 1 << 20, "daemon": 24 << 20}
"""Growth in bytes that is no leak in runs of less than three minutes: allocators and caches still fill."""
_LONG_S: Final = 180.0


class StressResult(Counts, kw_only=True):
    """The result of a run. Times in seconds, memory in bytes.

    `noticed_clock` and `memory_back_clock` include the time that daemon and observer waited for a processor;
    the others do not.
    """

    passed: bool
    repeat: str
    seed: int
    clients: int
    seconds: float
    kill: bool
    faults: bool
    noticed: Times
    noticed_clock: Times
    memory_back: Times
    memory_back_in_reset: Times
    memory_back_clock: Times
    growth: list[Growth]


def evaluate(state: State, deaths: list[Death], more: list[Failure]) -> StressResult:
    """Evaluate failures of the run, and those that only its end shows."""
    options = state.options
    growth = growths(state.samples, options.seconds)
    quiet = [death for death in deaths if not death.reset]
    noticed = Times.of([death.notice_s for death in deaths])
    failures = [*state.failures, *more, *_grown(growth, options.seconds)]
    if noticed.maximum > NOTICE_LIMIT_S:
        failures.append(
            Failure(
                kind="limit",
                text=f"a client's death was noticed after {noticed.maximum * 1000:.0f} ms (median"
                f" {noticed.median * 1000:.1f} ms); expected {NOTICE_LIMIT_S * 1000:.0f} ms at most",
            )
        )
    if state.compilations_excused > 2 * state.compiler_kills:
        failures.append(
            Failure(
                kind="error",
                text=f"{state.compilations_excused} compilations failed,"
                f" {state.compiler_kills} workers were killed",
            )
        )
    if not state.results_checked:
        failures.append(Failure(kind="error", text="no result was checked"))
    counts = {name: getattr(state, name) for name in Counts.__struct_fields__} | {"failures": failures}
    return StressResult(
        **counts,
        passed=not failures,
        repeat=repeat(state),
        seed=options.seed,
        clients=options.clients,
        seconds=options.seconds,
        kill=options.kill,
        faults=options.faults,
        noticed=noticed,
        noticed_clock=Times.of([death.noticed - death.at for death in deaths]),
        memory_back=Times.of([death.back_s for death in quiet]),
        memory_back_in_reset=Times.of([death.back_s for death in deaths if death.reset]),
        memory_back_clock=Times.of([death.back - death.at for death in deaths]),
        growth=growth,
    )


def repeat(state: State) -> str:
    """Return the command that reproduces the run."""
    options = state.options
    words = ["softnpu stress", f"--clients {options.clients}", f"--seconds {options.seconds:g}"]
    words += ["--kill"] * options.kill + ["--faults"] * options.faults
    words += [f"--seed {options.seed}", *(f"--model {model}" for model in options.models)]
    return " ".join(words)


def _grown(growth: list[Growth], seconds: float) -> list[Failure]:
    failures = []
    for each in growth:
        allowed = each.early * (1 + GROWTH_LIMIT) + (ALLOWANCE[each.what] if seconds < _LONG_S else 0)
        if each.late > allowed:
            failures.append(
                Failure(
                    kind="leak",
                    text=f"memory of the {each.what} grew from {each.early / 2**20:.1f} to"
                    f" {each.late / 2**20:.1f} MiB; expected at most {allowed / 2**20:.1f} MiB",
                )
            )
    return failures
