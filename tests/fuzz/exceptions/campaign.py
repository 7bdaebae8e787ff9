"""A run of random exceptions at lines of supervisor and engine, and the final checks."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import struct
import tempfile
import zlib
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest import mock

from softnpu.driver import Driver, ZeError
from softnpu.emulator.interface.messages import StatusAnswer
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.stress.coordinator import Coordinator, Options, State
from softnpu.tools.stress.daemon import Target
from tests.fuzz.plan import CommonPlan, Say, option
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

_MOST_RUNS = 200
_TRIES = 20
_ROOT = Path(__file__).parents[3]
_CLIENT = "tests.fuzz.exceptions.client:client_function"
_JUDGED = ("wrong", "hang", "leak", "error", "death")


@dataclass(frozen=True)
class Plan(CommonPlan):
    """How many lines, how often, beside whom."""

    exceptions: int = option(100_000, "at least so many lines where one may come", metavar="LINES")
    every: int = option(2_000, "mean lines between two")
    clients: int = option(6, "at once")
    run_s: float = option(60.0, "seconds of a run")
    kill: bool = option(False, "kill clients, engines and workers as well")


@dataclass
class Tally:
    """The counts: lines, exceptions by type and place, compared results, errors."""

    lines: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    sessions: int = 0
    resets: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.violations

    @property
    def raised(self) -> int:
        return self.kinds.total()

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    def summary(self) -> str:
        most = ", ".join(f"{place} {count}" for place, count in self.places.most_common(5))
        lines = [
            f"{self.lines} lines, {self.raised} exceptions of {len(self.kinds)} types at {len(self.places)}"
            f" places ({most})",
            f"{self.checked} results compared in {self.sessions} sessions, {self.resets} engines replaced",
            *(f"VIOLATION: {violation}" for violation in self.violations),
            f"{len(self.violations)} violations",
        ]
        return "\n".join(lines)


class _Patient(Coordinator):
    """A coordinator that repeats a question interrupted by an exception."""

    def _status(self) -> StatusAnswer:
        status = wait_until(self._ask, what="an answer of the daemon")
        assert status is not None
        return status

    def _ask(self) -> StatusAnswer | None:
        try:
            with Driver.open(self._target.socket, autostart=False, role="monitor") as monitor:
                return monitor.status()
        except ZeError:
            return None


def run(plan: Plan, say: Say) -> Tally:
    """Let clients use a raising daemon, in runs of a minute, until enough lines have been reached."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="softnpu-exceptions-") as name:
        folder = Path(name)
        notes = folder / "raised"
        notes.mkdir()
        shutil.copy(Path(__file__).with_name("raising.py"), notes / "sitecustomize.py")
        variables = {
            "PYTHONPATH": f"{notes}:{_ROOT}",
            "SOFTNPU_RAISING": f"{notes},{plan.seed},{plan.every}",
        }
        with mock.patch.dict(os.environ, variables):
            # only the clients' numbers shall check its engines, not code that raises as well
            daemon = Daemon(DaemonSettings(socket=str(folder / "npu.sock")), interpreter=True)
            daemon.tracebacks_expected = True
            try:
                _runs(plan, folder, daemon, tally, notes, say)
                daemon.stop()
            except AssertionError as error:
                tally.violations.append(str(error))
            finally:
                daemon.close()
            if tally.violations and plan.found is not None:
                ignored = shutil.ignore_patterns("*.sock", "*.npz", "*.bin")
                shutil.copytree(folder, plan.found, ignore=ignored, dirs_exist_ok=True)
    return tally


def _runs(plan: Plan, folder: Path, daemon: Daemon, tally: Tally, notes: Path, say: Say) -> None:
    for number in range(_MOST_RUNS):
        options = Options(
            clients=plan.clients,
            seconds=plan.run_s,
            kill=plan.kill,
            faults=False,
            seed=zlib.crc32(f"{plan.seed}:{number}".encode()),
        )
        work = folder / f"run-{number}"
        work.mkdir()
        state = _run(options, Target(daemon.socket, work), tally)
        tally.checked += state.results_checked
        tally.sessions += state.processes
        tally.resets = state.engine_resets
        tally.violations += [str(failure) for failure in state.failures if failure.kind in _JUDGED]
        if tally.violations:
            tally.violations.append(f"the daemon {'lives' if daemon.alive else 'died'}: {daemon.log[-3000:]}")
            tally.violations.append(f"it has open: {_open_files(daemon.pid)}")
        _read(notes, tally)
        say(f"{tally.lines} lines, {tally.raised} exceptions, {tally.checked} results compared")
        if tally.violations or tally.lines >= plan.exceptions:
            return


def _run(options: Options, target: Target, tally: Tally) -> State:
    """One run; it is begun again if its own connection has met an exception."""
    for _ in range(_TRIES):
        coordinator = _Patient(options, target, lambda _state: None, _CLIENT)
        try:
            coordinator.run()
        except ZeError as error:
            if not coordinator.state.processes:
                continue
            tally.violations.append(str(error))
        except (AssertionError, ToolError) as error:
            tally.violations.append(str(error))
        return coordinator.state
    tally.violations.append("nobody can connect")
    return coordinator.state


def _open_files(pid: int) -> dict[str, int]:
    """What the descriptors of a process are, and how many of each."""
    folder, found = Path(f"/proc/{pid}/fd"), Counter[str]()
    for name in os.listdir(folder) if folder.exists() else ():
        with contextlib.suppress(OSError):  # closed meanwhile
            found[re.sub(r":\[\d+\]", "", os.readlink(folder / name))] += 1
    return dict(found)


def _read(notes: Path, tally: Tally) -> None:
    tally.lines = sum(struct.unpack("=Q", path.read_bytes())[0] for path in notes.glob("lines.*"))
    raised = [line for path in notes.glob("raised.*") for line in path.read_text().splitlines()]
    tally.kinds = Counter(line.split()[0] for line in raised)
    tally.places = Counter(line.split()[1] for line in raised)
