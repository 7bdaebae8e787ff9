"""A run: several lanes take one number after another; findings are reduced, saved and counted."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from softnpu.driver import native_library
from softnpu.driver.native_library import NativeLibrary
from tests.fuzz.models import case as cases
from tests.fuzz.models import choice
from tests.fuzz.models.findings import Finding
from tests.fuzz.models.lane import Lane
from tests.fuzz.models.records import Way
from tests.fuzz.models.shrink import load, save, shrink
from tests.fuzz.models.tally import Tally
from tests.fuzz.models.traits import traits_of
from tests.fuzz.plan import CommonPlan, Say, option

_TELL_EVERY_S = 30.0
_MOST_OF_A_KIND = 2


@dataclass(frozen=True)
class Plan(CommonPlan):
    """How many models, in which ways. `replay`: SEED:NUMBER, or the folder of a saved finding."""

    models: int = option(60, "so many random models", metavar="N")
    first: int = option(0, "number of the first one")
    workers: int = option(1, "side by side")
    ways: Sequence[str] = option(
        (),
        "only ways that contain one of these, such as native: or /reset; with --replay whole ones",
        type=str,
        nargs="+",
        metavar="PART",
    )
    each: int = option(1, "ways for each model, by chance; 0: all")
    shrinks: int = option(20, "findings to make small, at most two of a kind")
    shrink_s: float = option(60.0, "seconds for each")
    stop: bool = option(False, "end with the first new difference")


class Campaign:
    """One run."""

    def __init__(self, plan: Plan, say: Say) -> None:
        self._plan = plan
        self._say = say
        self._lock = threading.Lock()
        self._next = plan.first
        self._kinds: Counter[tuple[str, str]] = Counter()
        self._shrunk = 0
        self._begun = time.monotonic()
        self._told = self._begun
        self._failures: list[BaseException] = []
        self.tally = Tally()

    def run(self) -> Tally:
        """Run all models; return the results."""
        library = native_library.find()
        with tempfile.TemporaryDirectory(prefix="softnpu-fuzz-") as name:
            threads = [
                threading.Thread(
                    target=self._lane, args=(Path(name, f"l{number}"), library), name=f"lane {number}"
                )
                for number in range(self._plan.workers)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if self._failures:
            raise self._failures[0]
        self.tally.seconds = time.monotonic() - self._begun
        return self.tally

    def _lane(self, folder: Path, library: NativeLibrary | None) -> None:
        lane = Lane(folder, library)
        try:
            key = self._take()
            while key is not None:
                ahead = self._take()
                self._one(lane, key, ahead)
                key = ahead
        except BaseException as error:  # noqa: BLE001 - told by `run`, in the thread that waits for all
            self._failures.append(error)
        finally:
            with self._lock:
                self.tally.daemon_deaths += lane.daemon_deaths
            lane.close()

    def _take(self) -> cases.Key | None:
        with self._lock:
            if self._next >= self._plan.first + self._plan.models or self._failures:
                return None
            if self._plan.stop and not self.tally.good:
                return None
            self._next += 1
            return cases.Key(self._plan.seed, self._next - 1)

    def _one(self, lane: Lane, key: cases.Key, ahead: cases.Key | None) -> None:
        counts: Counter[str] = Counter()
        case = cases.seen(key)
        operations = Counter(node.get_type_name() for node in case.model.get_ordered_ops())
        plan = self._plan
        ways = choice.chosen(key, plan.ways, traits_of(case), plan.each)
        deadly = bool(plan.ways) or choice.is_given(key)
        findings = lane.examine(key, ways, counts, deadly=deadly, ahead=ahead)
        with self._lock:
            self.tally.models += 1
            self.tally.counts += counts
            self.tally.operations += operations
        for finding in findings:
            small = self._small(lane, finding)
            with self._lock:
                self.tally.add(small)
        self._tell()

    def _small(self, lane: Lane, finding: Finding) -> Finding:
        """Reduce a finding if it is new and there are few of its kind."""
        kind = (finding.kind, finding.reason if finding.kind != "wrong" else finding.way.api)
        with self._lock:
            if finding.known or finding.unsure or self._shrunk >= self._plan.shrinks:
                return finding
            if self._kinds[kind] >= (_MOST_OF_A_KIND if finding.kind != "wrong" else self._plan.shrinks):
                return finding
            self._kinds[kind] += 1
            self._shrunk += 1
        small = shrink(lane, finding, self._plan.shrink_s)
        if self._plan.found is not None:
            save(small, self._plan.found / f"{small.key.seed}-{small.key.number}-{small.way.api}")
        self._say(str(small))
        return small

    def _tell(self) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._told < _TELL_EVERY_S:
                return
            self._told = now
            rate = self.tally.models / (now - self._begun)
            text = (
                f"{self.tally.models} models, {rate:.1f} a second, {len(self.tally.findings)} new differences"
            )
            self.tally.seconds = now - self._begun
            if self._plan.json is not None:
                self._plan.json.write_text(json.dumps(self.tally.as_json(), indent=1))
        self._say(text)


def run(plan: Plan, say: Say) -> Tally:
    """Run everything, or replay one case."""
    if plan.replay:
        return _replay(plan, say)
    return Campaign(plan, say).run()


def _replay(plan: Plan, say: Say) -> Tally:
    """Replay `SEED:NUMBER` in the ways of its number or the given ones, or a saved finding."""
    seed, _, number = plan.replay.rpartition(":")
    path = Path(plan.replay)
    if path.exists():
        key, way = load(path)
        ways = [Way.of(way)]
    else:
        key = cases.Key(seed, int(number))
        ways = choice.chosen(key, (), traits_of(cases.seen(key)))
    if plan.ways:
        ways = [Way.of(text) for text in plan.ways]
    tally = Tally(models=1)
    say("\n".join(cases.described(cases.seen(key))))
    with tempfile.TemporaryDirectory(prefix="softnpu-fuzz-") as name:
        lane = Lane(Path(name, "l0"), native_library.find())
        try:
            for finding in lane.examine(key, ways, tally.counts):
                tally.add(finding)
                say(str(finding))
        finally:
            lane.close()
    return tally
