"""A whole campaign: a daemon, a bystander, rounds of attacks, and the final checks."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from softnpu.driver import Driver
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.tools.demo.digits import model_path
from tests.fuzz.attack_frames import Target, frames_round, longest_bodies, open_victim
from tests.fuzz.blobs import blobs_round
from tests.fuzz.bystander import Bystander
from tests.fuzz.connection import Closed, Connection, Hang
from tests.fuzz.daemon_checks import DaemonChecks
from tests.fuzz.dice import Dice
from tests.fuzz.hostile_objects import Descriptors, make_models
from tests.fuzz.plan import CommonPlan, Say, option
from tests.fuzz.raw import lingering, raw_round, slow_reader
from tests.fuzz.report import Tally, Violation
from tests.fuzz.rings import huge_regions, restless_tail, rings_round
from tests.fuzz.shortage import LIMITS, become_bound, folder_for_caches, short_of
from tests.fuzz.weights_files import weights_files_round
from tests.support.daemon import Daemon

_TDR_MS = 100  # the cost of waiting for an event that nobody signals
_CALM_S = 0.3


@dataclass(frozen=True)
class Plan(CommonPlan):
    """How many cases of each kind."""

    frames: int = option(20_000, "requests with one error")
    raw: int = option(2_000, "malformed frames")
    rings: int = option(2_000, "submissions")
    blobs: int = option(500, "blobs, placements, weights and IRs")
    weights_files: int = option(2_000, "safetensors files")
    jobs: float = option(1.0, "share of frames for the compiler")
    at: str = option(
        "",
        "the daemon is at this limit meanwhile: a request may be refused, and a connection be ended, for a"
        " lack of that; nobody may hang, nothing may end or be left",
        choices=LIMITS,
    )


Round = Callable[[Dice, int, int], None]
_AT_A_LIMIT = ("frames", "raw")
_SIZE_AT_A_LIMIT = 96
_SIZES = {"frames": 480, "raw": 200, "rings": 250, "blobs": 48, "weights_files": 1000}


class Campaign:
    """One run against one daemon."""

    def __init__(self, plan: Plan, target: Target, checks: DaemonChecks, tally: Tally, say: Say) -> None:
        self._plan = plan
        self._checks = checks
        self._tally = tally
        self._say = say
        # a session that was ended for a lack of something has no further cases
        self._sizes = {
            kind: size if not plan.at else min(size, _SIZE_AT_A_LIMIT) for kind, size in _SIZES.items()
        }
        self._rounds: dict[str, Round] = {
            "frames": lambda dice, count, _: frames_round(target, dice, count, plan.jobs, tally),
            "raw": lambda dice, count, _: raw_round(target, dice, count, tally),
            "rings": lambda dice, count, index: rings_round(target, dice, count, tally, index),
            "blobs": lambda dice, count, _: blobs_round(target, dice, count, tally),
            "weights_files": lambda dice, count, _: weights_files_round(dice, count, tally),
        }
        self._special: dict[str, Callable[[], None]] = {
            "longest-bodies": lambda: longest_bodies(target, Dice(plan.seed, "longest"), tally),
            "lingering": lambda: lingering(target, tally),
            "slow-reader": lambda: slow_reader(target, tally),
            "restless-tail": lambda: restless_tail(target, tally),
            "huge-regions": lambda: huge_regions(target, tally),
        }

    def run(self) -> None:
        """Run all rounds, or that of a replay (`KIND:NUMBER`)."""
        if self._plan.replay:
            self._one(self._plan.replay)
            return
        for name in self._special:
            self._one(name)
        for kind in self._rounds:
            if self._plan.at and kind not in _AT_A_LIMIT:
                continue
            count = getattr(self._plan, kind)
            for index in range(-(-count // self._sizes[kind])):
                if self._tally.failed_enough:
                    return
                self._one(f"{kind}:{index}")

    def _one(self, name: str) -> None:
        kind, _, index = name.partition(":")
        start = time.monotonic()
        restarts = self._checks.restarts()
        try:
            if index:
                size = self._sizes[kind]
                count = min(size, getattr(self._plan, kind) - int(index) * size)
                count = count if count > 0 else size
                self._rounds[kind](Dice(self._plan.seed, kind, index), count, int(index))
                self._tally.cases[kind] += count
            else:
                self._special[kind]()
                self._tally.cases[kind] += 1
        except (Violation, Hang, Closed, AssertionError, Refused, OSError) as error:
            if self._plan.at and not isinstance(error, Hang):
                self._tally.refused[f"for a lack of {self._plan.at}"] += 1
                return
            self._tally.violate(self._where(name), error)
            self._say(f"VIOLATION {self._tally.violations[-1]}")
        self._tally.seconds[kind] += time.monotonic() - start  # type: ignore[assignment]
        self._look(name, restarts)

    def _look(self, name: str, restarts: int) -> None:
        try:
            self._checks.check(restarts)
            kind = name.partition(":")[0]
            self._tally.innocent_ms[kind] = max(self._tally.innocent_ms.get(kind, 0.0), self._checks.last_ms)
        except Violation as error:
            self._tally.violate(self._where(name), error)
            self._say(f"VIOLATION {self._tally.violations[-1]}")

    def _where(self, name: str) -> str:
        jobs = "" if self._plan.jobs == Plan.jobs else f" --jobs {self._plan.jobs:g}"
        at = f" --at {self._plan.at}" if self._plan.at else ""
        return f"[python -m tests.fuzz --seed {self._plan.seed}{jobs}{at} --replay {name}]"


@contextmanager
def _surroundings(folder: Path) -> Iterator[Daemon]:
    daemon = Daemon(DaemonSettings(socket=str(folder / "npu.sock"), tdr_ms=_TDR_MS, log_level="warning"))
    try:
        yield daemon
        if daemon.alive:
            daemon.stop()
    finally:
        if daemon.alive:
            daemon.kill()


def _use_staging(daemon: Daemon) -> None:
    """Make the engine map its staging file, which it keeps from first use on: not a leak."""
    with Driver.open(daemon.socket) as driver, driver.devices[0].create_context() as context:
        memory, commands = context.alloc_host(128), context.create_command_list()
        commands.append_memory_copy(memory.address + 32, memory, 64)
        commands.close()
        queue = context.create_command_queue()
        queue.execute_command_lists([commands])
        assert queue.synchronize(10_000_000_000), "no end of a copy"


def run(plan: Plan, say: Say) -> Tally:
    """Run one campaign with its own daemon; return the tally."""
    become_bound(plan.at)
    tally = Tally()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="softnpu-fuzz-")))
        stack.enter_context(folder_for_caches(plan.at, folder))
        daemon = stack.enter_context(_surroundings(folder))
        bystander = Bystander(daemon.socket, model_path())
        stack.callback(bystander.close)
        victim = stack.enter_context(Connection(daemon.socket))
        victim.hello("victim")
        models = make_models(folder, victim)
        handles, exports = open_victim(victim)
        hostile_objects = Descriptors(folder)
        stack.callback(hostile_objects.close)
        _use_staging(daemon)
        checks = DaemonChecks(daemon, bystander, plan.at)
        stack.callback(checks.close)
        target = Target(daemon.socket, models, hostile_objects, handles, exports)
        with short_of(plan.at, daemon, folder):
            Campaign(plan, target, checks, tally, say).run()
        time.sleep(_CALM_S)  # workers that were killed end
        try:
            checks.finish()
        except (Violation, AssertionError) as error:
            tally.violate("[the whole run]", error)
            say(f"VIOLATION {tally.violations[-1]}")
        tally.engine_restarts = checks.restarts() if daemon.alive else -1
        tally.bystander = {"inferences": checks.inferences, "longest_ms": round(bystander.longest_ms, 1)}
        if tally.violations:
            say("\n".join(line for line in daemon.log.splitlines() if not line[:4].isdigit())[-4000:])
    return tally
