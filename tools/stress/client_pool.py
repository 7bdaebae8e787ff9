"""The client processes: the nursery that forks them, their births, reports and ends."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import msgspec

from softnpu.tools.stress import progress_page as boards
from softnpu.tools.stress.plan import OPERATIONS, Plan
from softnpu.tools.stress.progress_page import Control, Field
from softnpu.tools.stress.reports import Born, Ended, Failure, Setup, Start
from softnpu.tools.stress.run_history import RunHistory
from softnpu.tools.stress.worker import stack_path

_MESSAGE = 1 << 16
_END_S = 10.0
_STACK_S = 2.0
_TOO_MANY = 50
HANG_S = 120.0
"""No step takes so long: every wait of a client gives up before."""


class Life:
    """One process: whose place it has, and what is open for it here."""

    def __init__(self, client: int, pid: int, pidfd: int, report: socket.socket) -> None:
        self.client = client
        self.pid = pid
        self.pidfd = pidfd
        self.report = report
        self.gone = False
        self.shot = False

    def close(self) -> None:
        """Closes both descriptors."""
        os.close(self.pidfd)
        self.report.close()


class ClientPool:
    """All clients of a run. Those that die as planned come back; `failures` has what is wrong."""

    def __init__(self, plan: Plan, socket_path: Path, folder: Path, chronicle: RunHistory) -> None:
        self.failures: list[Failure] = []
        self.births = 0
        self.planned_deaths = 0
        self._plan = plan
        self._chronicle = chronicle
        fd, self.board = boards.create(plan.clients)
        self._folder = str(folder)
        self._lives: dict[int, Life] = {}
        self._by_descriptor: dict[int, Life] = {}
        self._died: list[Life] = []
        self._numbers = [0] * plan.clients
        self._stopping = False
        setup = Setup(
            socket=str(socket_path),
            folder=str(folder),
            board_fd=fd,
            seed=plan.seed,
            clients=plan.clients,
            kill=plan.kill,
            faults=plan.faults,
            parent=os.getpid(),
        )
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-m", "softnpu.tools.stress.fork_server"]
        with theirs:
            self._nursery = subprocess.Popen(
                [*command, msgspec.json.encode(setup).decode(), str(theirs.fileno())],
                pass_fds=(fd, theirs.fileno()),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the director, which ends the others in order
            )
        os.close(fd)
        self._poller = select.poll()
        self._poller.register(self._orders, select.POLLIN)

    def __enter__(self) -> ClientPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._orders.close()
        try:
            self._nursery.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._nursery.kill()
            self._nursery.wait()
        for life in self._lives.values():
            life.close()

    def start(self) -> None:
        """Asks for the first process of every client."""
        for client in range(self._plan.clients):
            self._order(client)

    @property
    def running(self) -> int:
        """How many processes live."""
        return sum(not life.gone for life in self._lives.values())

    def turn(self, timeout_s: float) -> list[Life]:
        """Waits for something to happen and deals with it; who has just died as planned."""
        self._died = []
        for fd, _ in self._poller.poll(timeout_s * 1000):
            if fd == self._orders.fileno():
                self._hear()
                continue
            life = self._by_descriptor.get(fd)
            if life is None:
                continue  # the nursery's word of its end came first
            if fd == life.pidfd:
                self._depart(life)
            else:
                self._read_reports(life)
        return self._died

    def note_compiler_kill(self) -> None:
        """Tells clients that a compilation may fail from now on."""
        self.board.control[Control.COMPILER_KILLS] += 1

    def stop(self) -> None:
        """Asks all clients to end after their step."""
        self._stopping = True
        self.board.control[Control.STOP] = 1

    def shoot_hanging(self) -> None:
        """Ends whoever has been at one step for too long, and notes where it was."""
        now = time.monotonic_ns()
        for life in self._lives.values():
            row = self.board.row(life.client)
            since = int(row[Field.SINCE_NS])
            if life.gone or life.shot or not since or now - since < HANG_S * 1e9:
                continue
            life.shot = True
            self._fail("hang", life.client, f"for {(now - since) / 1e9:.0f} s\n{self._stack(life)}")
            os.kill(life.pid, signal.SIGKILL)

    # ------------------------------------------------------------

    def _stack(self, life: Life) -> str:
        """Where a process is, in the words of Python's fault handler."""
        path = stack_path(self._folder, life.client)
        os.kill(life.pid, signal.SIGUSR1)
        end = time.monotonic() + _STACK_S
        text = ""
        while "File" not in text and time.monotonic() < end:
            time.sleep(_STACK_S / 20)  # the handler writes without a word to anybody
            text = path.read_text(errors="replace")
        return text

    def _order(self, client: int) -> None:
        step = int(self.board.row(client)[Field.STEP]) + 1 if self._numbers[client] else 0
        order = Start(client=client, life=self._numbers[client], step=step)
        self._numbers[client] += 1
        self._orders.send(msgspec.json.encode(order))

    def _hear(self) -> None:
        data, fds, _, _ = socket.recv_fds(self._orders, _MESSAGE, 2)
        if not data:
            raise ChildProcessError(f"the nursery ended with {self._nursery.wait(_END_S)}")
        if fds:
            born = msgspec.json.decode(data, type=Born)
            report = socket.socket(fileno=fds[1])
            report.setblocking(False)
            life = Life(born.client, born.pid, fds[0], report)
            self._lives[born.pid] = life
            for fd in fds:
                self._by_descriptor[fd] = life
                self._poller.register(fd, select.POLLIN)
            self.births += 1
            return
        self._bury(msgspec.json.decode(data, type=Ended))

    def _depart(self, life: Life) -> None:
        """It does not live any more; harmless when repeated."""
        if life.gone:
            return
        self._read_reports(life)
        life.gone = True
        for fd in (life.pidfd, life.report.fileno()):
            self._poller.unregister(fd)
            del self._by_descriptor[fd]
        if self.board.row(life.client)[Field.DYING]:
            self._died.append(life)

    def _bury(self, ended: Ended) -> None:
        """Its end is known: was it to die? Then its place is filled again."""
        life = self._lives.pop(ended.pid)
        self._depart(life)
        life.close()
        row = self.board.row(life.client)
        number = os.WTERMSIG(ended.status) if os.WIFSIGNALED(ended.status) else 0
        if row[Field.DYING] and number in (signal.SIGKILL, signal.SIGALRM):
            self.planned_deaths += 1
            self._chronicle.note(f"client {life.client} (pid {life.pid}) died as planned")
        elif ended.status and not life.shot and not self._told(life.client):
            words = f"signal {number}" if number else f"exit code {os.waitstatus_to_exitcode(ended.status)}"
            self._fail("death", life.client, f"its process ended by itself with {words}")
        if not self._stopping and len(self.failures) < _TOO_MANY:
            self._order(life.client)

    def _told(self, client: int) -> bool:
        step = int(self.board.row(client)[Field.STEP])
        return any(failure.client == client and failure.step == step for failure in self.failures)

    def _fail(self, kind: str, client: int, text: str) -> None:
        row = self.board.row(client)
        operation = int(row[Field.OPERATION])
        name = OPERATIONS[operation] if operation >= 0 else "between two steps"
        self.failures.append(
            Failure(kind=kind, client=client, step=int(row[Field.STEP]), operation=name, text=text)
        )

    def _read_reports(self, life: Life) -> None:
        while True:
            try:
                data = life.report.recv(_MESSAGE)
            except BlockingIOError:
                return
            if not data:
                return
            failure = msgspec.json.decode(data, type=Failure)
            if failure.report:
                self._chronicle.complete(Path(failure.report), self.board)
            self.failures.append(failure)
