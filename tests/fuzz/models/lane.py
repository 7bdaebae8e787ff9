"""A daemon of its own with the processes beside it: runs one case at a time, in several ways, and judges."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

from softnpu.driver import Driver, ZeError
from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.driver.native_library import NativeLibrary
from softnpu.emulator.interface.environment import ENV_AUTOSTART, ENV_SOCKET
from softnpu.emulator.interface.messages import EngineStatus
from softnpu.emulator.supervisor.settings import DaemonSettings
from tests.fuzz.models import case as cases
from tests.fuzz.models.compare import Verdict, judge, same
from tests.fuzz.models.edits import CannotEdit
from tests.fuzz.models.findings import Finding
from tests.fuzz.models.known import known
from tests.fuzz.models.peer import Peer
from tests.fuzz.models.records import Answer, Died, Job, Refusal, Way
from tests.fuzz.models.reference import EVIDENCE
from tests.fuzz.models.traits import traits_of
from tests.support.daemon import Daemon

_DEADLINE_S = 60.0
_READY_S = 30.0
_EVIDENCE_S = 20.0
_OF_A_DEATH = ("again", "alike", "bound")
RIGHT, ZEROS, SPLIT = (Way("cpu", "plain", form) for form in ("right", "zeros", "split"))


class Lane:
    """One daemon, one process with the CPU device, two with the plugin, one with unmodified OpenVINO."""

    def __init__(self, folder: Path, native: NativeLibrary | None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._daemon: Daemon | None = None
        self._monitor: Driver | None = None
        socket = folder / "npu.sock"
        base = {**os.environ, ENV_SOCKET: str(socket), ENV_AUTOSTART: "0", ENV_CACHE_DIR: ""}
        self._peers = {
            "cpu": Peer("cpu", base, folder / "cpu.log"),
            "plugin": Peer("plugin", base, folder / "plugin.log"),
            "second": Peer("plugin", base, folder / "second.log"),
        }
        if native is not None:
            self._peers["native"] = Peer("native", native.environment(socket, base), folder / "native.log")
        self._jobs = 0
        self.daemon_deaths: list[str] = []

    def close(self) -> None:
        """Ends everything."""
        for peer in self._peers.values():
            peer.stop()
        self._stop_daemon()

    # ------------------------------------------------------------ one case

    def examine(
        self, key: cases.Key, ways: Sequence[Way], counts: Counter[str], evidence: bool = True
    ) -> list[Finding]:
        """Runs a case in all the ways; what went wrong. `counts` gets what became of each."""
        findings: list[Finding] = []
        if not ways:
            return findings
        expected: dict[str, Answer | Died] = {}
        self._peers["cpu"].send(self._job(key, RIGHT))
        first = True
        for way in ways:
            before = self._engine()
            answer = self._run(key, way, before, first, expected)
            first = False
            right = self._expected(key, way, answer, expected)
            if isinstance(right, Answer) and right.refused is not None and right.refused.stage == "make":
                counts["not made"] += 1
                return findings
            finding, verdict = self._judged(key, way, answer, right, before)
            counts[f"{way.api} {verdict.kind}" if finding is None else f"{way.api} FOUND {verdict.kind}"] += 1
            if (
                finding is None
                and isinstance(answer, Answer)
                and answer.notes
                and right is not expected["right"]
            ):
                counts["right as samples one by one, and not as a batch"] += 1
            if verdict.other_nans:
                counts["NaNs with other bits"] += verdict.other_nans
            if finding is None:
                counts[f"way {way}"] += 1
            else:
                if isinstance(right, Answer) and any(
                    isinstance(step, Refusal) for step in chain(*right.rounds)
                ):
                    finding.traits.add("a step that is refused")
                self._explain(finding, answer, right, evidence)
                finding.known = finding.known or _as_before(finding, findings)
                findings.append(finding)
            if self._engine().restarts != before.restarts:
                self._settle(way)
        return findings

    def _run(
        self, key: cases.Key, way: Way, before: EngineStatus, first: bool, expected: dict[str, Answer | Died]
    ) -> Answer | Died:
        """The answer in one way. The first time the CPU device works at the same time."""
        peer = self._peers[way.api]
        job = self._job(key, way, engine_pid=before.engine_pid)
        twin = way.run == "twins"
        if twin:
            job = replace(job, way=replace(way, run="many"))
            self._peers["second"].send(replace(job, folder=job.folder + "b"))
        peer.send(job)
        if first:
            expected["right"] = self._peers["cpu"].receive(_DEADLINE_S)
        answer = peer.receive(_DEADLINE_S)
        if twin:
            other = self._peers["second"].receive(_DEADLINE_S)
            if isinstance(other, Died):
                return other
            if isinstance(answer, Answer) and answer.refused is None:
                if other.refused is not None:
                    return other
                answer.rounds += other.rounds
        return answer

    def _expected(
        self, key: cases.Key, way: Way, answer: Answer | Died, expected: dict[str, Answer | Died]
    ) -> Answer | Died:
        """What is right for this way: the CPU device's answer in the form that belongs to it."""
        right = expected["right"]
        if isinstance(right, Died) or isinstance(answer, Died) or answer.refused is not None:
            return right
        form: Answer | Died = right
        if way.api == "native" and "states" in self._traits(key):
            form = expected.setdefault("zeros", self._cpu(key, ZEROS))
        if answer.notes and isinstance(right, Answer) and not judge(answer, right).good:
            # computed sample by sample: the CPU has other kernels at batch 1
            form = self._cpu(key, SPLIT, notes=answer.notes)
        return form

    def _judged(
        self, key: cases.Key, way: Way, answer: Answer | Died, right: Answer | Died, before: EngineStatus
    ) -> tuple[Finding | None, Verdict]:
        """The finding, if there is one, and the verdict."""
        after = self._engine()
        lost = after.restarts - before.restarts - (way.run == "reset")
        if self._daemon is None:
            return self._finding(key, way, Verdict("daemon died", self.daemon_deaths[-1]))
        if isinstance(answer, Died):
            return self._finding(
                key, way, Verdict("client hung" if answer.hung else "client died", str(answer))
            )
        if isinstance(right, Died):
            told = answer.refused or next(
                (s for steps in answer.rounds for s in steps if not isinstance(s, list)), None
            )
            if told is None:
                return None, Verdict("right where OpenVINO dies")
            verdict = Verdict("told where OpenVINO dies" if told.typed else "untyped", str(told))
            return (None, verdict) if told.typed else self._finding(key, way, verdict)
        verdict = judge(answer, right)
        if lost > 0 and verdict.kind != "untyped":
            verdict = Verdict("engine died", f"{lost} restarts; {verdict.kind}: {verdict.text}")
        return (None, verdict) if verdict.good else self._finding(key, way, verdict)

    def _finding(self, key: cases.Key, way: Way, verdict: Verdict) -> tuple[Finding | None, Verdict]:
        finding = Finding(key, way, verdict.kind, verdict.text)
        with suppress(CannotEdit):
            case = cases.make(key)
            finding.operations = Counter(node.get_type_name() for node in case.model.get_ordered_ops())
            finding.model = cases.described(case)
            finding.traits = traits_of(case)
        return finding, verdict

    def _explain(self, finding: Finding, answer: Answer | Died, right: Answer | Died, evidence: bool) -> None:
        """Asks OpenVINO alone in other forms, and says what is known already."""
        if evidence and isinstance(right, Answer):
            for form in EVIDENCE if isinstance(answer, Answer) else _OF_A_DEATH:
                found = self._cpu(finding.key, Way("cpu", "plain", form), {"run": finding.way.run})
                finding.evidence[form] = _said(found, right, answer)
        finding.known = known(finding)

    # ------------------------------------------------------------ parts

    def _cpu(self, key: cases.Key, way: Way, notes: Mapping[str, object] | None = None) -> Answer | Died:
        deadline_s = _EVIDENCE_S if way.run in EVIDENCE else _DEADLINE_S
        return self._peers["cpu"].ask(replace(self._job(key, way), notes=dict(notes or {})), deadline_s)

    def _traits(self, key: cases.Key) -> set[str]:
        return traits_of(cases.make(key))

    def _job(self, key: cases.Key, way: Way, engine_pid: int = 0) -> Job:
        self._jobs += 1
        return Job(key, way, str(self.folder / f"job{self._jobs}"), engine_pid)

    def _engine(self) -> EngineStatus:
        """The engine as it is; a daemon is started if there is none."""
        for _ in range(2):
            if self._daemon is None:
                self._daemon = Daemon(DaemonSettings(socket=str(self.folder / "npu.sock")))
                self._monitor = Driver.open(self._daemon.socket, autostart=False, role="monitor")
            assert self._monitor is not None
            try:
                return self._monitor.status().engines[0]
            except ZeError as error:
                self.daemon_deaths.append(f"{error}; {self._daemon.log[-800:]}")
                self._stop_daemon()
        raise RuntimeError(f"no daemon: {self.daemon_deaths[-1]}")

    def _settle(self, way: Way) -> None:
        """After an engine's death: clients are replaced, so that none is an offender for it."""
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
        if way.run == "twins":
            self._peers["second"].stop()

    def _stop_daemon(self) -> None:
        if self._monitor is not None:
            with suppress(ZeError):
                self._monitor.destroy()
        if self._daemon is not None:
            self._daemon.kill()
        self._daemon = self._monitor = None


def _as_before(finding: Finding, others: Sequence[Finding]) -> str:
    """The known kind of another way that was refused as well: unmodified OpenVINO tells no reason."""
    if finding.kind != "refused alone":
        return ""
    return next((one.known for one in others if one.kind == finding.kind and one.known), "")


def _said(found: Answer | Died, right: Answer, answer: Answer | Died) -> str:
    """What another form of asking the CPU device says, in a word."""
    if isinstance(found, Died):
        return "died"
    if same(found, right):
        return "same"
    if isinstance(answer, Answer) and same(found, answer):
        return "as softnpu"
    return "refused" if found.refused else "differs"
