"""The compiler worker as a process: it leaves nothing behind, and ends when it should."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from softnpu.emulator.interface.messages import WeightSource, encode
from softnpu.emulator.links.compiler import ExportJob
from tests.support.compiler import DEADLINE_S, Files, Made, Worker, import_job, memory_file


def test_two_hundred_jobs_leave_nothing_behind(worker: Worker, static: Files, tmp_path: Path) -> None:
    made = worker.blob(static.job(), static.fds)
    blob, placement = memory_file(made.blob), memory_file(made.placement)
    garbage = memory_file(b"<?xml garbage")
    imported = import_job(made, static.sources)
    cut = msgspec.structs.replace(imported, blob_length=len(made.blob) - 1)
    short = (WeightSource(offset=0, length=1),)
    rounds: list[Callable[[], object]] = [
        lambda: worker.blob(static.job(), static.fds),
        lambda: worker.info(static.job(xml_length=13), [garbage, static.bin]),
        lambda: worker.info(static.job(shapes={"image": (1, 9, 9, 9)}), static.fds),
        lambda: worker.info(static.job(config={"NOPE": "1"}), static.fds),
        lambda: worker.info(static.job(), static.fds * 3),
        lambda: worker.blob(imported, [blob, placement, static.bin]),
        lambda: worker.info(cut, [blob, placement, static.bin]),
        lambda: worker.info(import_job(made, short), [blob, placement, static.bin]),
        lambda: worker.content(_export(made, static), [blob, placement, static.bin]),
    ]
    for job in rounds:
        job()
    before = worker.fd_count()
    for _ in range(200 // len(rounds)):
        for job in rounds:
            job()
    assert worker.fd_count() == before
    assert worker.mappings(str(tmp_path)) == worker.mappings("memfd:softnpu") == 0
    for fd in (blob, placement, garbage):
        os.close(fd)


def _export(made: Made, files: Files) -> ExportJob:
    return ExportJob(blob_length=len(made.blob), placement_length=len(made.placement), weights=files.sources)


def test_the_worker_ends_when_its_channel_closes() -> None:
    worker = Worker()
    worker.close()
    assert worker.process.returncode == 0


def test_the_worker_ends_when_the_channel_closes_in_the_middle_of_a_job(static: Files) -> None:
    worker = Worker()
    worker.channel.send(1, encode(static.job()), static.fds)
    worker.close()
    assert worker.process.returncode == 0


def test_the_worker_dies_with_its_parent() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = (
        "import os, subprocess, sys; fd = int(sys.argv[1]);"
        "command = [sys.executable, '-m', 'softnpu.emulator.compiler', str(fd), str(os.getpid())];"
        "print(subprocess.Popen(command, pass_fds=[fd]).pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(theirs.fileno())]
    pipe = subprocess.PIPE
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=pipe, stdout=pipe) as parent:
        theirs.close()
        assert parent.stdout is not None
        worker = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        try:
            assert select.select([worker], [], [], DEADLINE_S)[0], "the worker outlived its parent"
        finally:
            os.close(worker)


@pytest.mark.parametrize("arguments", [[], ["x", "1"], ["0", "1"], ["99", "1"]])
def test_wrong_arguments_are_told(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "softnpu.emulator.compiler", *arguments]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 2
    assert "usage: " in done.stderr


def test_the_package_is_light_without_the_worker() -> None:
    code = "import sys, softnpu.emulator.compiler.__main__; print('openvino' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout.strip() == "False"
