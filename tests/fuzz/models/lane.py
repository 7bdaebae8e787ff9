"""A lane: its own daemon and helper processes, running one case at a time in several ways, and judging."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from softnpu.driver import Driver, ZeError
from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.driver.native_library import NativeLibrary
from softnpu.emulator.interface.environment import ENV_AUTOSTART, ENV_SOCKET
from softnpu.emulator.interface.messages import EngineStatus
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.emulator.supervisor.tuning import Tuning
from tests.fuzz.models import case as cases
from tests.fuzz.models import choice
from tests.fuzz.models.compare import Verdict, judge, same, verdict_of
from tests.fuzz.models.findings import Finding
from tests.fuzz.models.known import (
    DIED_TOO,
    INHERITED,
    ONE_BY_ONE,
    WRITTEN_TOO,
    WRONG_TOO,
    Seen,
    unexcused,
)
from tests.fuzz.models.peer import Peer
from tests.fuzz.models.records import Answer, Died, Job, Way
from tests.fuzz.models.reference import EVIDENCE
from tests.fuzz.models.right import RIGHT, Right
from tests.fuzz.models.traits import Traits, traits_of, unlike_declared
from tests.support.daemon import Daemon

_DEADLINE_S = 300.0
_READY_S = 30.0
_EVIDENCE_S = 60.0
"""All limits are long: a hunt runs at idle priority."""
_OF_A_DEATH = ("again", "alike", "bound")
_LASTING_S = 3600.0
"""Compiler workers are kept: a new one costs more than its memory."""
_MORE = 3
_MOST_LOG = 3000
_BOTH = ("right where OpenVINO dies", "told where OpenVINO dies")
_OTHER_MEMORY = {"GLIBC_TUNABLES": "glibc.malloc.perturb=90"}
"""Uninitialised memory has other content there."""


class Lane:
    """One daemon, two processes with the CPU device, two with the plugin, one with unmodified OpenVINO."""

    def __init__(self, folder: Path, native: NativeLibrary | None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._daemon: Daemon | None = None
        self._monitor: Driver | None = None
        socket = folder / "npu.sock"
        base = {**os.environ, ENV_SOCKET: str(socket), ENV_AUTOSTART: "0", ENV_CACHE_DIR: ""}
        self._peers = {
            "cpu": Peer("cpu", base, folder / "cpu.log"),
            "other": Peer("cpu", {**base, **_OTHER_MEMORY}, folder / "other.log"),
            "plugin": Peer("plugin", base, folder / "plugin.log"),
            "second": Peer("plugin", base, folder / "second.log"),
        }
        if native is not None:
            self._peers["native"] = Peer("native", native.environment(socket, base), folder / "native.log")
        self._jobs = 0
        self._ahead: tuple[cases.Key, Answer | Died | None] | None = None
        self.daemon_deaths: list[str] = []

    def close(self) -> None:
        """End everything."""
        for peer in self._peers.values():
            peer.stop()
        self._stop_daemon()

    # ------------------------------------------------------------ one case

    def examine(
        self,
        key: cases.Key,
        ways: Sequence[Way],
        counts: Counter[str],
        evidence: bool = True,
        deadly: bool = True,
        ahead: cases.Key | None = None,
    ) -> list[Finding]:
        """Run a case in all the ways; return the findings. `counts` gets each result.

        Without `deadly`, softnpu skips a case that kills OpenVINO's CPU device. `ahead` is the next case: the
        CPU device computes it meanwhile.
        """
        findings: list[Finding] = []
        if not ways:
            return findings
        plain = self._plain(key)
        if isinstance(plain, Died) and not deadly:
            counts["not given to softnpu: OpenVINO dies"] += 1
            return findings
        if isinstance(plain, Answer) and plain.refused is not None and plain.refused.stage == "make":
            counts["not made"] += 1
            return findings
        traits = traits_of(cases.seen(key))
        right = Right(partial(self._cpu, key), traits)
        right.give(plain)
        for way in ways:
            before, logged = self._engine(), self._log_size()
            answer = self._run(key, way, before, ahead)
            verdict, used = self._judged(way, answer, right, before)
            counts.update(used)
            if verdict.other_nans:
                counts["NaNs with other bits"] += verdict.other_nans
            if verdict.good or verdict.kind in _BOTH:
                counts[f"{way.api} {verdict.kind}"] += 1
                counts[f"way {way}"] += 1
            else:
                finding = self._finding(key, way, verdict)
                if "died" in verdict.kind:
                    finding.log = self._logged(logged)
                self._explain(finding, traits, answer, right, evidence)
                told = "known" if finding.known else "FOUND"
                counts[f"{way.api} {told} {verdict.kind}"] += 1
                findings.append(finding)
            after = self._engine()
            counts["inferences begun before their turn"] += max(0, after.overlapped - before.overlapped)
            if after.restarts != before.restarts:
                self._settle(way)
        return findings

    def _run(self, key: cases.Key, way: Way, before: EngineStatus, ahead: cases.Key | None) -> Answer | Died:
        """Return the answer in one way. The CPU device starts the case `ahead` at the same time."""
        peer = self._peers[way.api]
        job = self._job(key, way, engine_pid=before.engine_pid)
        paired = way.run == "pair"
        if paired:
            job = replace(job, way=replace(way, run="many"))
            self._peers["second"].send(replace(job, folder=job.folder + "b"))
        peer.send(job)
        if ahead is not None and self._ahead is None:
            self._peers["cpu"].send(self._job(ahead, RIGHT))
            self._ahead = ahead, None
            cases.seen(ahead)
        answer = peer.receive(_DEADLINE_S)
        if paired:
            other = self._peers["second"].receive(_DEADLINE_S)
            if isinstance(other, Died):
                return other
            if isinstance(answer, Answer) and answer.refused is None:
                if other.refused is not None:
                    return other
                answer.rounds += other.rounds
        return answer

    def _judged(
        self, way: Way, answer: Answer | Died, right: Right, before: EngineStatus
    ) -> tuple[Verdict, list[str]]:
        """Return the verdict, and the other forms of the CPU device that confirm the answer."""
        after = self._engine()
        lost = after.restarts - before.restarts - (way.run == "reset")
        if self._daemon is None:
            return Verdict("daemon died", self.daemon_deaths[-1]), []
        if isinstance(answer, Died):
            return Verdict("client hung" if answer.hung else "client died", str(answer)), []
        if isinstance(right.plain, Died):
            told = answer.refused or next(
                (s for steps in answer.rounds for s in steps if not isinstance(s, list)), None
            )
            if told is None:
                return Verdict("right where OpenVINO dies"), []
            return Verdict("told where OpenVINO dies" if told.typed else "untyped", str(told)), []
        verdict, used = right.judge(way, answer)
        if lost > 0 and verdict.kind != "untyped":
            verdict = Verdict("engine died", f"{lost} restarts; {verdict.kind}: {verdict.text}")
        return verdict, used

    def _finding(self, key: cases.Key, way: Way, verdict: Verdict) -> Finding:
        finding = Finding(key, way, verdict.kind, verdict.text, differences=verdict.differences)
        case = cases.seen(key)
        finding.operations = Counter(node.get_type_name() for node in case.model.get_ordered_ops())
        finding.model = cases.described(case)
        return finding

    # ------------------------------------------------------------ explanations

    def _explain(
        self, finding: Finding, traits: Traits, answer: Answer | Died, right: Right, evidence: bool
    ) -> None:
        """Remove known differences, and ask OpenVINO alone in other forms about the rest."""
        plain = right.plain
        unlike = unlike_declared(cases.seen(finding.key), plain) if isinstance(plain, Answer) else frozenset()
        seen = Seen(finding.way, traits, unlike)
        left, names = unexcused(seen, finding.differences)
        if left and finding.way.api == "native" and all(one.kind == "refused alone" for one in left):
            names += self._by_the_plugin(finding, seen, right) or self._by_its_batch(finding, right)
            left = [] if names else left
        if finding.differences and not left:
            finding.known = "; ".join(names)
            return
        if len(left) < len(finding.differences):
            finding.differences, finding.text = left, verdict_of(left).text
        if not evidence or not isinstance(plain, Answer):
            return
        engine_died = finding.kind == "engine died"
        forms = EVIDENCE if isinstance(answer, Answer) else _OF_A_DEATH
        notes = {"run": finding.way.run, **(answer.notes if isinstance(answer, Answer) else {})}
        if engine_died:
            forms = (*(["outside"] if "states" in traits else []), *forms)
            forms = (*(["split"] if "inputs" in notes else []), *forms)
        for form in forms:
            peer = "other" if form == "again" else "cpu"
            found = self._cpu(finding.key, Way("cpu", "plain", form), notes, _EVIDENCE_S, peer)
            finding.evidence[form] = _said(found, plain, answer)
            dies = engine_died or "compiler worker: ended with signal" in finding.text
            if dies and isinstance(found, Died) and not found.hung:
                finding.known = DIED_TOO
                return
            if not isinstance(found, Answer) or not finding.differences:
                continue
            if form == "again":
                finding.unsure = _covered(finding, [found, *self._more(finding, notes, found, plain)], plain)
            elif form == "alike" and finding.evidence[form] == "as softnpu":
                finding.known = INHERITED
            elif form == "written" and finding.evidence[form] == "as softnpu" and _not_loaded(finding):
                finding.known = WRITTEN_TOO
            elif (
                form == "alike"
                # an engine killed in between starts with a new OpenVINO request
                and (finding.kind == "wrong" or finding.way.run == "reset")
                and _covered(finding, [found], plain)
            ):
                finding.known = WRONG_TOO
            if finding.unsure or finding.known:
                return

    def _more(
        self, finding: Finding, notes: Mapping[str, object], found: Answer, plain: Answer
    ) -> Iterator[Answer]:
        """Yield more answers of the CPU device if they vary: uninitialised memory differs."""
        if same(found, plain):
            return
        for _ in range(_MORE):
            answer = self._cpu(finding.key, Way("cpu", "plain", "again"), notes, _EVIDENCE_S, "other")
            if isinstance(answer, Answer):
                yield answer

    def _by_the_plugin(self, finding: Finding, seen: Seen, right: Right) -> list[str]:
        """Return excuses for the same refusal by softnpu's plugin: unmodified OpenVINO gives no reason."""
        answer = self._peers["plugin"].ask(self._job(finding.key, choice.PLAIN), _DEADLINE_S)
        if isinstance(answer, Died):
            return []
        differences = right.judge(choice.PLAIN, answer)[0].differences
        refused = [one for one in differences if one.kind == "refused alone"]
        left, names = unexcused(replace(seen, way=choice.PLAIN), refused)
        return names if refused and not left else []

    def _by_its_batch(self, finding: Finding, right: Right) -> list[str]:
        """Return the excuses for a refusal that goes away when the compiler takes the whole batch."""
        run = finding.way.run if finding.way.run not in ("pair", "reset") else "many"
        way = replace(finding.way, compiled="compiler", run=run)
        answer = self._peers["native"].ask(self._job(finding.key, way), _DEADLINE_S)
        good = isinstance(answer, Answer) and right.judge(way, answer)[0].good
        return [ONE_BY_ONE] if good and finding.way.compiled != "compiler" else []

    # ------------------------------------------------------------ parts

    def _plain(self, key: cases.Key) -> Answer | Died:
        """Return the CPU device's answer: requested ahead, or now."""
        self._collect()
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == key and ahead[1] is not None:
            return ahead[1]
        return self._cpu(key, RIGHT, {})

    def _collect(self) -> None:
        """Receive the answer requested ahead, so that its process is free again."""
        if self._ahead is not None and self._ahead[1] is None:
            self._ahead = self._ahead[0], self._peers["cpu"].receive(_DEADLINE_S)

    def _cpu(
        self,
        key: cases.Key,
        way: Way,
        notes: Mapping[str, object],
        deadline_s: float = _DEADLINE_S,
        peer: str = "cpu",
    ) -> Answer | Died:
        if peer == "cpu":
            self._collect()
        return self._peers[peer].ask(replace(self._job(key, way), notes=dict(notes)), deadline_s)

    def _job(self, key: cases.Key, way: Way, engine_pid: int = 0) -> Job:
        self._jobs += 1
        return Job(key, way, str(self.folder / f"job{self._jobs}"), engine_pid)

    def _engine(self) -> EngineStatus:
        """Return the engine's current status; start a daemon if there is none."""
        for _ in range(2):
            if self._daemon is None:
                tuning = Tuning(compiler_idle_s=_LASTING_S)
                self._daemon = Daemon(DaemonSettings(socket=str(self.folder / "npu.sock"), tuning=tuning))
                self._monitor = Driver.open(self._daemon.socket, autostart=False, role="monitor")
            assert self._monitor is not None
            try:
                return self._monitor.status().engines[0]
            except ZeError as error:
                self.daemon_deaths.append(f"{error}; {self._daemon.log[-800:]}")
                self._stop_daemon()
        raise RuntimeError(f"no daemon: {self.daemon_deaths[-1]}")

    def _log_size(self) -> int:
        return self._daemon.log_path.stat().st_size if self._daemon is not None else 0

    def _logged(self, begin: int) -> str:
        """Return the end of the daemon's log since then."""
        if self._daemon is None:
            return ""
        with self._daemon.log_path.open("rb") as log:
            log.seek(max(begin, self._log_size() - _MOST_LOG))
            return log.read().decode(errors="replace")

    def _settle(self, way: Way) -> None:
        """Replace clients after an engine's death, so that none counts as an offender."""
        end = time.monotonic() + _READY_S
        while self._engine().state != "ready" and time.monotonic() < end:
            time.sleep(0.02)
        if self._engine().state != "ready":
            self._stop_daemon()
            for name in ("plugin", "second", "native"):
                if name in self._peers:
                    self._peers[name].stop()
            return
        self._peers[way.api].stop()
        if way.run == "pair":
            self._peers["second"].stop()

    def _stop_daemon(self) -> None:
        if self._monitor is not None:
            with suppress(ZeError):
                self._monitor.destroy()
        if self._daemon is not None:
            self._daemon.kill()
        self._daemon = self._monitor = None


def _not_loaded(finding: Finding) -> bool:
    return all(one.kind == "refused alone" and one.step < 0 for one in finding.differences)


def _covered(finding: Finding, answers: Sequence[Answer], right: Answer) -> bool:
    """Return whether other answers of the CPU device differ from its first one wherever the finding does.

    A step after a differing one is also unreliable.
    """
    first: dict[int, int] = {}
    for one in (each for found in answers for each in judge(found, right).differences):
        first[one.output] = min(one.step, first.get(one.output, one.step))
    begin = min(first.values(), default=None)
    return all(
        any(key in first and first[key] <= one.step for key in (one.output, -1))
        or (one.output < 0 and begin is not None and begin <= one.step)
        for one in finding.differences
    )


def _said(found: Answer | Died, right: Answer, answer: Answer | Died) -> str:
    """Return another form's answer of the CPU device, in a word."""
    if isinstance(found, Died):
        return "died"
    if same(found, right):
        return "same"
    if isinstance(answer, Answer) and same(found, answer):
        return "as softnpu"
    return "refused" if found.refused else "differs"
