"""`bench memory`: total memory when several processes run one model, against one process.

It is the proportional set size of supervisor, engines, compiler workers and clients: a page that several
processes map counts once in total, including merely mapped pages of the weights file. Beside it: the pages
that only the last client has, against a Python that does nothing, or only imports OpenVINO.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from softnpu.driver import Driver
from softnpu.tools.bench.client import client
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.bench.result import Measurement, absolute, compared
from softnpu.tools.bench.worker import Worker
from softnpu.tools.shared.console import err
from softnpu.tools.shared.private_daemon import private_daemon, process_tree

BENCH = "memory"
# A compiler worker ends after 10 s without work; a spare one always runs.
_WORKERS_END_S = 15.0
_QUIET_S = 2.0
_MIB = 1024 * 1024
_PEERS = {"driver": ("bare Python", ""), "plugin": ("a process with openvino", "import openvino")}
"""What a client cannot do without, by its way: a name, and a program."""
_PARTS = ("supervisor", "engine", "compiler", "clients")


def run(model: BenchModel, processes: int, settle: bool) -> Iterator[Measurement]:
    """Yield the totals for `processes` clients, through the driver (IR files only) and through the plugin.

    `settle` waits until the compiler workers have ended; otherwise they count in both totals.
    """
    ways = ["driver"] * (model.path.suffix == ".xml") + ["plugin"]
    for way in ways:
        yield from _compare(way, model, processes, settle)


def _compare(way: str, model: BenchModel, processes: int, settle: bool) -> Iterator[Measurement]:
    with ExitStack() as stack:
        socket = stack.enter_context(private_daemon()).socket
        observer = stack.enter_context(Driver.open(socket, autostart=False))
        if settle:
            _settled(observer, sys.maxsize)  # a spare worker has processes of its own, which start later
        spare = _compilers(process_tree(observer.daemon_pid))
        clients = [_start(stack, way, socket, model)]
        clients[0].wait_until_ready()
        one = _parts(observer, clients, spare if settle else None)
        more = [_start(stack, way, socket, model) for _ in range(processes - 1)]
        for each in more:
            each.wait_until_ready()
        clients += more
        all_of_them = _parts(observer, clients, spare if settle else None)
        peer, program = _PEERS[way]
        bare = stack.enter_context(_waiting(program))
        own, least = private(clients[-1].pid) / _MIB, private(bare) / _MIB
    name = f"{model.name}, {way}"
    several, single = sum(all_of_them.values()), sum(one.values())
    yield compared(BENCH, f"{name}: total, {processes} processes", "MiB", several, "one process", single)
    yield compared(BENCH, f"{name}: private pages of a client", "MiB", own, peer, least)
    for part in _PARTS:
        metric = f"{name}: {part}"
        if one[part]:
            yield compared(BENCH, metric, "MiB", all_of_them[part], "one process", one[part])
        elif all_of_them[part]:
            yield absolute(BENCH, metric, "MiB", all_of_them[part])


def _start(stack: ExitStack, way: str, socket: Path, model: BenchModel) -> Worker:
    return stack.enter_context(client(way, socket, model))


@contextmanager
def _waiting(program: str) -> Iterator[int]:
    """Run Python with this program, and wait until it has ended; yield the pid."""
    words = [sys.executable, "-P", "-c", f"{program}\nprint(flush=True)\ninput()"]
    # CI: no telemetry, from a forked process that would share its pages
    environment = {**os.environ, "CI": "true"}
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def _parts(observer: Driver, clients: list[Worker], spare: int | None) -> Counter[str]:
    """Return MiB by part, at once (`spare` None) or when only `spare` compiler workers are left."""
    if spare is not None and not _settled(observer, spare):
        err.print(f"compiler workers did not end within {_WORKERS_END_S:g} s: they count")
    sizes: Counter[str] = Counter()
    for pid, part in process_tree(observer.daemon_pid).items():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            sizes[part] += pss(pid)
    for each in clients:
        sizes["clients"] += pss(each.pid)
    return Counter({part: size / _MIB for part, size in sizes.items()})


def _settled(observer: Driver, spare: int) -> bool:
    """Wait until workers stop coming and going; return False when that takes too long."""
    end = time.monotonic() + _WORKERS_END_S
    tree, since = process_tree(observer.daemon_pid), time.monotonic()
    while time.monotonic() < end:
        time.sleep(0.1)
        now = process_tree(observer.daemon_pid)
        if now != tree or _compilers(now) > spare:
            tree, since = now, time.monotonic()
        elif time.monotonic() - since > _QUIET_S:
            return True
    return False


def _compilers(tree: dict[int, str]) -> int:
    return sum(part == "compiler" for part in tree.values())


def total(daemon_pid: int | None, pids: Iterable[int]) -> int:
    """Sum the bytes of these processes and a daemon's; one that has just ended has none."""
    size = 0
    for pid in (*(process_tree(daemon_pid) if daemon_pid is not None else ()), *pids):
        with suppress(FileNotFoundError, ProcessLookupError):
            size += pss(pid)
    return size


def pss(pid: int) -> int:
    """Return bytes of a process's proportional set size."""
    return _sum(pid, "Pss")


def private(pid: int) -> int:
    """Return bytes of the pages that no other process has."""
    return _sum(pid, "Private_Clean", "Private_Dirty")


def _sum(pid: int, *names: str) -> int:
    """Return the kernel's sums in smaps_rollup."""
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    return sum(int(value.split()[0]) * 1024 for name, _, value in lines if name in names)
