"""One client process: it follows the plan step by step, checks every result, and dies as planned."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from softnpu.driver import Allocation, ZeError, ZeResult
from softnpu.emulator.common import failpoints
from softnpu.tools.stress import faulty, operations
from softnpu.tools.stress.checking import Finding, Wrong
from softnpu.tools.stress.client_session import Session, Stuck
from softnpu.tools.stress.diagnosis import Scene
from softnpu.tools.stress.evidence import Report
from softnpu.tools.stress.journal import Journal
from softnpu.tools.stress.plan import OPERATIONS, Death, Plan, Step
from softnpu.tools.stress.progress_page import IDLE, Control, Field, ProgressPage
from softnpu.tools.stress.reports import Failure, Setup, Start, reports_folder
from softnpu.tools.stress.workloads import Samples, Workload, read_list

T = TypeVar("T")
Subjects = list[tuple[Workload, Samples]]


def load_subjects(setup: Setup) -> Subjects:
    """The models and their samples, for all clients that are forked from here."""
    return [(subject, Samples(subject)) for subject in read_list(Path(setup.folder))]


def stack_path(folder: str, client: int) -> Path:
    """Where a client writes where it stands when it is asked (SIGUSR1)."""
    return Path(folder) / f"stack-{client}.txt"


def live(setup: Setup, order: Start, board: ProgressPage, subjects: Subjects, report: socket.socket) -> int:
    """The life of a client; its exit code: 0 when it was told to stop, 1 after a failure it has reported."""
    client = Worker(setup, order, board, subjects, report)
    with open(stack_path(setup.folder, order.client), "w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        try:
            client.run()
        except Stuck as stuck:
            client.tell_found("hang", str(stuck), None)
        except Wrong as wrong:
            client.tell_found("wrong", str(wrong), wrong.finding)
        except Exception as error:
            client.stay()
            client.tell("error", _words(error))
            raise
        else:
            return 0
    return 1


def _words(error: Exception) -> str:
    """An unexpected error and where it came from, in one line."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    places = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__}: {error} ({places})"


class Worker:
    """See the module. `operations` act on it."""

    def __init__(
        self, setup: Setup, order: Start, board: ProgressPage, subjects: Subjects, report: socket.socket
    ) -> None:
        self.number = order.client
        self.board = board
        self._setup = setup
        self._row = board.row(order.client)
        self._subjects = subjects
        self._channel = report
        self._plan = Plan(setup.seed, setup.clients, len(subjects), setup.kill, setup.faults)
        self._next = order.step
        self._life = order.life
        self._journal = Journal(order.client, order.life)
        self._shared: tuple[Allocation, int] | None = None
        self._row[Field.GENERATION] = 0
        self._row[Field.PID] = os.getpid()
        self._row[Field.LIFE] = order.life
        self._row[Field.DYING] = 0
        self._row[Field.OPERATION] = IDLE
        self._step: Step | None = None
        self._spent = False

    def run(self) -> None:
        """Steps until it is told to stop, or dies."""
        self._row[Field.SINCE_NS] = time.monotonic_ns()
        self.open()
        while not self.board.control[Control.STOP]:
            self._take(self._plan.step(self.number, self._next))
            self._next += 1
            if self._spent:
                break
        self.share(0, 0, None)
        self.session.close()

    @staticmethod
    def stay() -> None:
        """Nobody ends this process now: what it has found would never be told."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        failpoints.configure("")

    def tell_found(self, kind: str, text: str, finding: Finding | None) -> None:
        """A wrong result or a hang, for the verdict, with a report of all that may explain it."""
        self.stay()
        try:
            report = self._report_on(text, finding)
            path = reports_folder(Path(self._setup.folder)) / f"client-{self.number}-step-{report.step}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(report.encode())
        except Exception as error:
            # what was found counts, whatever becomes of its report
            self.tell(kind, text, [f"no report: {_words(error)}"])
            raise
        self.tell(kind, text, report.lines(), str(path))

    def _report_on(self, text: str, finding: Finding | None) -> Report:
        scene = Scene(self._setup.seed, self.number, self._life, self._step, self.session)
        return scene.report(text, finding, [samples for _, samples in self._subjects])

    def tell(self, kind: str, text: str, details: Sequence[str] = (), report: str = "") -> None:
        """A failure, for the verdict."""
        step = self._step
        failure = Failure(
            kind=kind,
            text=text,
            client=self.number,
            step=-1 if step is None else step.number,
            operation="start" if step is None else step.operation,
            details=list(details),
            report=report,
        )
        self._channel.send(msgspec.json.encode(failure))

    # ------------------------------------------------------------ for operations

    session: Session

    def reconnect(self) -> None:
        """Ends the session in order and opens another."""
        self.share(0, 0, None)
        self.session.close()
        self.open()

    def compiling(self, compile: Callable[[], T]) -> T | None:
        """What `compile` makes; None if the director has killed compiler workers while it was at work."""
        kills = int(self.board.control[Control.COMPILER_KILLS])
        try:
            return compile()
        except ZeError as error:
            now = int(self.board.control[Control.COMPILER_KILLS])
            if error.result != ZeResult.ERROR_MODULE_BUILD_FAILURE or now == kills:
                raise
            self._row[Field.EXCUSED] += 1
            return None

    def share(self, subject: int, sample: int, memory: Allocation | None) -> None:
        """Others may use `memory` from now on, in place of what was shared before."""
        row, before = self._row, int(self._row[Field.GENERATION])
        row[Field.GENERATION] = 0
        if self._shared is not None:
            os.close(self._shared[1])
            self._shared = None
        if memory is None:
            return
        fd = self.session.context.export_memory(memory)
        self._shared = (memory, fd)
        row[Field.SHARED_FD], row[Field.SHARED_SUBJECT], row[Field.SHARED_SAMPLE] = fd, subject, sample
        row[Field.GENERATION] = max(before, self._next) + 1

    # ------------------------------------------------------------

    def open(self) -> None:
        """A new session."""
        setup = self._setup
        cache = Path(setup.folder) / "cache"
        # one and the same client has both sorts of sessions, one life after the other
        throughput = bool((self.number + self._life) % 2)
        self.session = Session(Path(setup.socket), self._subjects, cache, self._journal, throughput)
        self._row[Field.SESSION] = self.session.driver.session

    def _take(self, step: Step) -> None:
        """One step."""
        row = self._row
        self._step = step
        kind = OPERATIONS.index(step.operation)
        row[Field.SINCE_NS] = time.monotonic_ns()
        row[Field.STEP] = step.number
        row[Field.OPERATION] = kind
        self._journal.begin(step)
        if step.death is not None:
            row[Field.DYING] = 1
            self._arm(step.death)
        if step.operation in operations.ALL:
            checked = operations.ALL[step.operation](self, step)
        else:
            checked = faulty.provoke(self, step)
            self._spent = step.operation.removeprefix("fault ") in faulty.ALSO_REBORN
        if step.death is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        self._journal.end()
        row[Field.CHECKED] += checked
        row[Field.DONE + kind] += 1
        row[Field.OPERATION] = IDLE

    @staticmethod
    def _arm(death: Death) -> None:
        if death.point:
            failpoints.configure(f"{death.point}=kill")
        else:
            # the kernel ends the process at that moment, wherever it is: nothing of Python runs any more
            signal.setitimer(signal.ITIMER_REAL, death.milliseconds / 1000)
