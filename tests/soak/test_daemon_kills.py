"""Daemons killed repeatedly: waiters are told, nothing is left behind, the next daemon starts."""

from __future__ import annotations

import gc
import os
import random
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from softnpu.driver import Driver, ZeError, ZeResult
from softnpu.emulator.supervisor.settings import DaemonSettings
from tests.soak.figures import loops, note, note_times
from tests.support.daemon import Daemon
from tests.support.models import Array, on_cpu
from tests.support.waiting import wait_gone
from tests.support.work import LONG, Loaded, execute, same, waits

_SHORT = 10
_GONE_S = 5.0


class _Life:
    """One daemon, used for computing, and then killed while somebody waits."""

    def __init__(self, socket: Path, digits: Path, image: Array, expected: list[Array]) -> None:
        start = time.monotonic()
        self.daemon = Daemon(DaemonSettings(socket=str(socket), tdr_ms=60_000))
        self.start_s = time.monotonic() - start
        self.learnt_s = 0.0
        try:
            with Driver.open(socket) as driver:
                context = driver.devices[0].create_context()
                queue = context.create_command_queue()
                loaded = Loaded(context, digits)
                assert same(loaded.infer(queue, image), expected)
                event = context.create_event()
                fence = execute(queue, waits(context, event))
                self._kill(chosen=random.Random(self.daemon.pid))
                killed = time.monotonic()
                with pytest.raises(ZeError) as caught:
                    fence.host_synchronize(LONG)
                self.learnt_s = time.monotonic() - killed
                assert caught.value.result == ZeResult.ERROR_DEVICE_LOST
        finally:
            if self.daemon.alive:
                self.daemon.kill()

    def _kill(self, chosen: random.Random) -> None:
        tree = psutil.Process(self.daemon.pid).children(recursive=True)
        time.sleep(chosen.uniform(0, 0.01))  # any moment
        self.daemon.process.kill()
        self.daemon.process.wait(_GONE_S)
        for child in tree:
            wait_gone(child.pid, _GONE_S)


def _kill_loop(digits: Path, folder: Path, count: int) -> None:
    image = np.random.default_rng(3).random((1, 1, 8, 8), dtype=np.float32) * 16
    expected = on_cpu(digits, image)
    socket = folder / "killed.sock"
    descriptors = 0
    starts, learnt, begin = [], [], time.monotonic()
    for number in range(count):
        life = _Life(socket, digits, image, expected)
        starts.append(life.start_s)
        learnt.append(life.learnt_s)
        files = sorted(path.name for path in folder.iterdir() if path.name.startswith("killed."))
        assert files == ["killed.sock", "killed.sock.lock", "killed.sock.log"], f"loop {number}"
        gc.collect()  # the error of the wait refers to everything that waited
        open_now = len(os.listdir("/proc/self/fd"))
        if number < 2:
            descriptors = open_now  # including those that libraries keep from their first use
        assert open_now <= descriptors, f"loop {number}: descriptors of a client"
    last = Daemon(DaemonSettings(socket=str(socket)))
    last.stop()
    last.close()
    assert not socket.exists(), "the next daemon cleans up"
    loop = f"daemon killed x{count}"
    note_times(loop, "a waiting client learns it after", learnt)
    note_times(loop, "start on the socket of the dead", starts)
    note(loop, "took", f"{time.monotonic() - begin:.0f} s")


def test_ten_daemons_are_killed(digits: Path, private_dir: Path) -> None:
    _kill_loop(digits, private_dir, _SHORT)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_daemons_are_killed_a_thousand_times(digits: Path, private_dir: Path) -> None:
    _kill_loop(digits, private_dir, loops())
