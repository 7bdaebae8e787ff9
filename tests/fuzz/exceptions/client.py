"""A stress client that may receive errors: then it ends, and another process continues."""

from __future__ import annotations

import faulthandler
import signal
import socket
from pathlib import Path

import msgspec

from softnpu.driver import ZeError
from softnpu.tools.shared.fork_server import ChildFunction
from softnpu.tools.stress.checking import WrongResult
from softnpu.tools.stress.client_session import WaitTimeout
from softnpu.tools.stress.progress_page import Field, ProgressPage
from softnpu.tools.stress.reports import Setup, StartClient
from softnpu.tools.stress.worker import Worker
from softnpu.tools.stress.workloads import Samples, read_list


def client_function(setup_json: str) -> ChildFunction:
    """Return the function that the fork server runs in every client."""
    setup = msgspec.json.decode(setup_json, type=Setup)
    progress = ProgressPage(setup.progress_fd, setup.clients)
    workloads = [(workload, Samples(workload)) for workload in read_list(Path(setup.folder))]

    def run(request: bytes, connection: socket.socket) -> int:
        start = msgspec.json.decode(request, type=StartClient)
        client = Worker(setup, start, progress, workloads, connection)
        with open(client.stack_path, "w") as stacks:
            faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
            try:
                client.run()
            except ZeError:
                progress.row(start.client)[Field.EXCUSED] += 1
            except WaitTimeout as timeout:
                client.report_failure("hang", str(timeout), None)
                return 1
            except WrongResult as wrong:
                client.report_failure("wrong", str(wrong), wrong.finding)
                return 1
        return 0

    return run
