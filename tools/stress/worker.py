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
from softnpu.tools.shared.fork_server import ChildFunction
from softnpu.tools.stress import fault_operations, operations
from softnpu.tools.stress.checking import Finding, WrongResult
from softnpu.tools.stress.client_session import Session, WaitTimeout
from softnpu.tools.stress.diagnosis import Diagnosis
from softnpu.tools.stress.failure_report import Report
from softnpu.tools.stress.journal import Journal
from softnpu.tools.stress.plan import OPERATIONS, Death, Plan, Step
from softnpu.tools.stress.progress_page import IDLE, Control, Field, ProgressPage
from softnpu.tools.stress.reports import Failure, Setup, StartClient, reports_folder
from softnpu.tools.stress.workloads import Samples, Workload, read_list

T = TypeVar("T")
Workloads = list[tuple[Workload, Samples]]


def client_function(setup_json: str) -> ChildFunction:
    """Return the function of every client: models and samples are read once, before the fork."""
    setup = msgspec.json.decode(setup_json, type=Setup)
    progress = ProgressPage(setup.progress_fd, setup.clients)
    workloads = [(workload, Samples(workload)) for workload in read_list(Path(setup.folder))]

    def run(request: bytes, connection: socket.socket) -> int:
        start = msgspec.json.decode(request, type=StartClient)
        return run_client(Worker(setup, start, progress, workloads, connection))

    return run


def stack_path(folder: str, client: int) -> Path:
    """Return the path of a client's stack, written on SIGUSR1."""
    return Path(folder) / f"stack-{client}.txt"


def run_client(client: Worker) -> int:
    """Run a client to its end. Return its exit code: 1 after a reported failure."""
    with open(client.stack_path, "w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        try:
            client.run()
        except WaitTimeout as timeout:
            client.report_failure("hang", str(timeout), None)
        except WrongResult as wrong:
            client.report_failure("wrong", str(wrong), wrong.finding)
        except Exception as error:
            client.cancel_death()
            client.send_failure("error", _describe(error))
            raise
        else:
            return 0
    return 1


def _describe(error: Exception) -> str:
    """Describe an unexpected error and the last frames of its traceback in one line."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    frames_text = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__}: {error} ({frames_text})"


class Worker:
    """One client; `operations` act on it."""

    def __init__(
        self,
        setup: Setup,
        start: StartClient,
        progress: ProgressPage,
        workloads: Workloads,
        connection: socket.socket,
    ) -> None:
        self.number = start.client
        self.progress = progress
        self._setup = setup
        self._row = progress.row(start.client)
        self._workloads = workloads
        self._connection = connection
        self._plan = Plan(setup.seed, setup.clients, len(workloads), setup.kill, setup.faults)
        self._next = start.step
        self._incarnation = start.incarnation
        self._journal = Journal(start.client, start.incarnation)
        self._shared: tuple[Allocation, int] | None = None
        self._row[Field.GENERATION] = 0
        self._row[Field.PID] = os.getpid()
        self._row[Field.INCARNATION] = start.incarnation
        self._row[Field.DYING] = 0
        self._row[Field.OPERATION] = IDLE
        self._step: Step | None = None
        self._replace_after_step = False

    @property
    def stack_path(self) -> Path:
        return stack_path(self._setup.folder, self.number)

    def run(self) -> None:
        """Run steps until it has to stop, or dies."""
        self._row[Field.SINCE_NS] = time.monotonic_ns()
        self.open()
        while not self.progress.control[Control.STOP]:
            self._run_step(self._plan.step(self.number, self._next))
            self._next += 1
            if self._replace_after_step:
                break
        self.share(0, 0, None)
        self.session.close()

    @staticmethod
    def cancel_death() -> None:
        """Cancel a planned death: a failure must be reported first."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        failpoints.configure("")

    def report_failure(self, kind: str, text: str, finding: Finding | None) -> None:
        """Send a wrong result or a hang, and write a report with all possible explanations."""
        self.cancel_death()
        try:
            report = self._report_on(text, finding)
            path = reports_folder(Path(self._setup.folder)) / f"client-{self.number}-step-{report.step}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(report.encode())
        except Exception as error:
            # the failure counts even if its report fails
            self.send_failure(kind, text, [f"no report: {_describe(error)}"])
            raise
        self.send_failure(kind, text, report.lines(), str(path))

    def _report_on(self, text: str, finding: Finding | None) -> Report:
        diagnosis = Diagnosis(self._setup.seed, self.number, self._incarnation, self._step, self.session)
        return diagnosis.report(text, finding, [samples for _, samples in self._workloads])

    def send_failure(self, kind: str, text: str, details: Sequence[str] = (), report: str = "") -> None:
        """Send a failure to the coordinator."""
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
        self._connection.send(msgspec.json.encode(failure))

    # ------------------------------------------------------------ for operations

    session: Session

    def reconnect(self) -> None:
        """Close the session in order and open another."""
        self.share(0, 0, None)
        self.session.close()
        self.open()

    def compiling(self, compile: Callable[[], T]) -> T | None:
        """Return the result of `compile`; None if the coordinator killed compiler workers meanwhile."""
        kills = int(self.progress.control[Control.COMPILER_KILLS])
        try:
            return compile()
        except ZeError as error:
            now = int(self.progress.control[Control.COMPILER_KILLS])
            if error.result != ZeResult.ERROR_MODULE_BUILD_FAILURE or now == kills:
                raise
            self._row[Field.EXCUSED] += 1
            return None

    def share(self, workload: int, sample: int, memory: Allocation | None) -> None:
        """Offer `memory` to others from now on, in place of the previous one."""
        row, before = self._row, int(self._row[Field.GENERATION])
        row[Field.GENERATION] = 0
        if self._shared is not None:
            os.close(self._shared[1])
            self._shared = None
        if memory is None:
            return
        fd = self.session.context.export_memory(memory)
        self._shared = (memory, fd)
        row[Field.SHARED_FD], row[Field.SHARED_WORKLOAD], row[Field.SHARED_SAMPLE] = fd, workload, sample
        row[Field.GENERATION] = max(before, self._next) + 1

    # ------------------------------------------------------------

    def open(self) -> None:
        """Open a new session."""
        setup = self._setup
        cache = Path(setup.folder) / "cache"
        # every client alternates both kinds of sessions
        throughput = bool((self.number + self._incarnation) % 2)
        self.session = Session(Path(setup.socket), self._workloads, cache, self._journal, throughput)
        self._row[Field.SESSION] = self.session.driver.session

    def _run_step(self, step: Step) -> None:
        """Run one step."""
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
            checked = fault_operations.inject_and_check(self, step)
            self._replace_after_step = (
                step.operation.removeprefix("fault ") in fault_operations.REPLACES_CLIENT
            )
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
            # the kernel ends the process at that moment, wherever it is: no more Python code runs
            signal.setitimer(signal.ITIMER_REAL, death.milliseconds / 1000)
