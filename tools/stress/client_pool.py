"""The client processes: their fork server, their reports and their ends."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

import msgspec

from softnpu.tools.shared.fork_server import Child, Exited, ForkServer
from softnpu.tools.stress import progress_page
from softnpu.tools.stress.plan import OPERATIONS, Plan
from softnpu.tools.stress.progress_page import Control, Field
from softnpu.tools.stress.reports import Failure, Setup, StartClient
from softnpu.tools.stress.run_history import RunHistory
from softnpu.tools.stress.worker import stack_path

_MESSAGE = 1 << 16
_STACK_S = 2.0
_TOO_MANY = 50
HANG_S = 120.0
"""No step takes this long: every wait of a client times out earlier."""
CLIENT = "softnpu.tools.stress.worker:client_function"


class ClientProcess:
    """One process of a client, and the connection on which it reports."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.client = msgspec.json.decode(child.request, type=StartClient).client
        self.pid = child.pid
        self.exited = False
        self.killed = False
        child.connection.setblocking(False)


class ClientPool:
    """All clients of a run. Those that die as planned are replaced; `failures` has the problems.

    `client`: the `ChildFunction` of their processes, as `module:function`.
    """

    def __init__(
        self, plan: Plan, socket_path: Path, folder: Path, history: RunHistory, client: str = CLIENT
    ) -> None:
        self.failures: list[Failure] = []
        self.started = 0
        self.planned_deaths = 0
        self._plan = plan
        self._history = history
        fd, self.progress = progress_page.create(plan.clients)
        self._folder = str(folder)
        self._processes: dict[int, ClientProcess] = {}
        self._by_descriptor: dict[int, ClientProcess] = {}
        self._died: list[ClientProcess] = []
        self._incarnations = [0] * plan.clients
        self._stopping = False
        setup = Setup(
            socket=str(socket_path),
            folder=str(folder),
            progress_fd=fd,
            seed=plan.seed,
            clients=plan.clients,
            kill=plan.kill,
            faults=plan.faults,
        )
        self._fork_server = ForkServer(client, msgspec.json.encode(setup).decode(), pass_fds=(fd,))
        os.close(fd)
        self._poller = select.poll()
        self._poller.register(self._fork_server, select.POLLIN)

    def __enter__(self) -> ClientPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._fork_server.close()
        for process in self._processes.values():
            process.child.close()

    def start(self) -> None:
        """Request the first process of every client."""
        for client in range(self._plan.clients):
            self._request_start(client)

    @property
    def running(self) -> int:
        """The number of running processes."""
        return sum(not process.exited for process in self._processes.values())

    def poll(self, timeout_s: float) -> list[ClientProcess]:
        """Wait for events and handle them; return processes that have just died as planned."""
        self._died = []
        for fd, _ in self._poller.poll(timeout_s * 1000):
            if fd == self._fork_server.fileno():
                self._receive()
                continue
            process = self._by_descriptor.get(fd)
            if process is None:
                continue  # the fork server's message about its end came first
            if fd == process.child.pidfd:
                self._mark_exited(process)
            else:
                self._read_reports(process)
        return self._died

    def note_compiler_kill(self) -> None:
        """Tell clients that a compilation may fail from now on."""
        self.progress.control[Control.COMPILER_KILLS] += 1

    def stop(self) -> None:
        """Ask all clients to end after their step."""
        self._stopping = True
        self.progress.control[Control.STOP] = 1

    def kill_hanging(self) -> None:
        """Kill every client that has been in one step for too long, and note its state."""
        now = time.monotonic_ns()
        for process in self._processes.values():
            since = int(self.progress.row(process.client)[Field.SINCE_NS])
            if process.exited or process.killed or not since or now - since < HANG_S * 1e9:
                continue
            process.killed = True
            self._fail("hang", process.client, f"for {(now - since) / 1e9:.0f} s\n{self._stack(process)}")
            os.kill(process.pid, signal.SIGKILL)

    def places(self) -> str:
        """Where in their code the clients are that have not ended."""
        waiting = [process for process in self._processes.values() if not process.exited]
        return "\n".join(f"client {process.client}:\n{self._stack(process)}" for process in waiting)

    # ------------------------------------------------------------

    def _stack(self, process: ClientProcess) -> str:
        """Return the stack of a process, as Python's fault handler writes it."""
        path = stack_path(self._folder, process.client)
        os.kill(process.pid, signal.SIGUSR1)
        end = time.monotonic() + _STACK_S
        text = ""
        while "File" not in text and time.monotonic() < end:
            time.sleep(_STACK_S / 20)  # the handler notifies nobody
            text = path.read_text(errors="replace") if path.exists() else ""
        return text

    def _request_start(self, client: int) -> None:
        incarnation = self._incarnations[client]
        step = int(self.progress.row(client)[Field.STEP]) + 1 if incarnation else 0
        self._incarnations[client] += 1
        request = StartClient(client=client, incarnation=incarnation, step=step)
        self._fork_server.request(msgspec.json.encode(request))

    def _receive(self) -> None:
        message = self._fork_server.receive()
        if isinstance(message, Exited):
            self._handle_exit(message)
            return
        process = self._processes[message.pid] = ClientProcess(message)
        for fd in (message.pidfd, message.connection.fileno()):
            self._by_descriptor[fd] = process
            self._poller.register(fd, select.POLLIN)
        self.started += 1

    def _mark_exited(self, process: ClientProcess) -> None:
        """Mark a process as ended; idempotent."""
        if process.exited:
            return
        self._read_reports(process)
        process.exited = True
        for fd in (process.child.pidfd, process.child.connection.fileno()):
            self._poller.unregister(fd)
            del self._by_descriptor[fd]
        if self.progress.row(process.client)[Field.DYING]:
            self._died.append(process)

    def _handle_exit(self, exited: Exited) -> None:
        """Check that the process ended as planned, and start this client's next one."""
        process = self._processes.pop(exited.pid)
        client = process.client
        self._mark_exited(process)
        process.child.close()
        number = os.WTERMSIG(exited.status) if os.WIFSIGNALED(exited.status) else 0
        if self.progress.row(client)[Field.DYING] and number in (signal.SIGKILL, signal.SIGALRM):
            self.planned_deaths += 1
            self._history.note(f"client {client} (pid {process.pid}) died as planned")
        elif exited.status and not process.killed and not self._already_failed(client):
            cause = f"signal {number}" if number else f"exit code {os.waitstatus_to_exitcode(exited.status)}"
            self._fail("death", client, f"its process ended by itself with {cause}")
        if not self._stopping and len(self.failures) < _TOO_MANY:
            self._request_start(client)

    def _already_failed(self, client: int) -> bool:
        step = int(self.progress.row(client)[Field.STEP])
        return any(failure.client == client and failure.step == step for failure in self.failures)

    def _fail(self, kind: str, client: int, text: str) -> None:
        row = self.progress.row(client)
        operation = int(row[Field.OPERATION])
        name = OPERATIONS[operation] if operation >= 0 else "between two steps"
        self.failures.append(
            Failure(kind=kind, client=client, step=int(row[Field.STEP]), operation=name, text=text)
        )

    def _read_reports(self, process: ClientProcess) -> None:
        while True:
            try:
                data = process.child.connection.recv(_MESSAGE)
            except BlockingIOError:
                return
            if not data:
                return
            failure = msgspec.json.decode(data, type=Failure)
            if failure.report:
                self._history.complete(Path(failure.report), self.progress)
            self.failures.append(failure)
