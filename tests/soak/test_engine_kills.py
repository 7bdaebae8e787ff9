"""Engines killed repeatedly, idle or at work: every client gets its results."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from softnpu.driver import Context, Driver
from tests.soak.figures import loops, note, note_times
from tests.support.daemon import Daemon
from tests.support.leaks import descriptors_of
from tests.support.models import on_cpu, write_chain
from tests.support.waiting import wait_gone, wait_until
from tests.support.work import LONG, Loaded, same

_SHORT = 10
_LATEST_S = 0.02


def _kill_loop(daemon: Daemon, context: Context, digits: Path, folder: Path, count: int) -> None:
    chosen = random.Random(count)
    image = np.random.default_rng(3).random((1, 1, 8, 8), dtype=np.float32) * 16
    matrix = np.random.default_rng(4).random((128, 128), dtype=np.float32)
    chain = write_chain(folder, 128, 40)
    small, large = Loaded(context, digits), Loaded(context, chain)
    expected, expected_large = on_cpu(digits, image), on_cpu(chain, matrix)
    queue, other = context.create_command_queue(), context.create_command_queue()
    assert same(small.infer(queue, image), expected)
    assert same(large.infer(other, matrix), expected_large)
    start = time.monotonic()
    times: list[float] = []
    supervisor = psutil.Process(daemon.pid)
    descriptors = 0
    with Driver.open(daemon.socket, role="monitor") as monitor:
        for number in range(count):
            pid = wait_until(lambda: _ready_pid(monitor), 30, what="an engine that is ready")
            fence = None
            if chosen.random() < 0.7:
                large.feed(matrix)
                fence = other.create_fence()
                other.execute_command_lists([large.commands], fence)
                time.sleep(chosen.uniform(0, _LATEST_S))  # any moment of the inference, or after it
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            assert same(small.infer(queue, image), expected), f"loop {number}"
            times.append(time.monotonic() - killed)
            if fence is not None:
                assert fence.host_synchronize(LONG), f"loop {number}"
                found = large.outputs
            else:
                # two engines that die while loading a graph would poison the graph
                found = large.infer(other, matrix)
            assert same(found, expected_large), f"loop {number}"
            wait_gone(pid)
            if number == min(3, count // 2):
                descriptors = daemon.base_fd_count()
        wait_until(lambda: _ready_pid(monitor), 30)
        engine = monitor.status().engines[0]
        wait_until(lambda: daemon.base_fd_count() <= descriptors, what="descriptors closed")
    assert engine.restarts == count
    assert engine.aborted == 0
    engines = [child for child in supervisor.children() if "softnpu.emulator.engine" in child.cmdline()]
    assert [child.pid for child in engines] == [engine.engine_pid]
    loop = f"engine killed x{count}"
    note_times(loop, "next inference after", times)
    note(loop, "descriptors of the last engine", descriptors_of(engine.engine_pid))
    note(loop, "took", f"{time.monotonic() - start:.0f} s")


def _ready_pid(monitor: Driver) -> int:
    engine = monitor.status().engines[0]
    return engine.engine_pid if engine.state == "ready" else 0


def test_ten_engines_are_killed(daemon: Daemon, context: Context, digits: Path, private_dir: Path) -> None:
    _kill_loop(daemon, context, digits, private_dir, _SHORT)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_engines_are_killed_a_thousand_times(
    daemon: Daemon, context: Context, digits: Path, private_dir: Path
) -> None:
    _kill_loop(daemon, context, digits, private_dir, loops())
