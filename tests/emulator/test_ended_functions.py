"""Whatever is raised at whatever line of an end: the second attempt of its owner completes it."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from softnpu.emulator.common.linux import memfd
from softnpu.emulator.links.compiler import OptionsJob
from softnpu.emulator.supervisor import reactor
from softnpu.emulator.supervisor.children import child_process
from softnpu.emulator.supervisor.compilers import pool
from softnpu.emulator.supervisor.engines import device, virtual_function
from softnpu.emulator.supervisor.engines.ban_policy import BanPolicy
from softnpu.emulator.supervisor.engines.status_page import StatusPage
from softnpu.emulator.supervisor.limits import Quota
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.emulator.supervisor.tuning import Tuning
from softnpu.emulator.supervisor.users import FunctionKey
from tests.emulator.test_descriptor_faults import _at_each_line, _loop, _process, _run
from tests.support.faulty import NthLine, faulty

pytestmark = pytest.mark.timeout(180)
_ANOTHER = FunctionKey(os.getuid() + 1)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    monkeypatch.setattr(reactor, "_BROKEN_PAUSE_S", 0.001)
    monkeypatch.setattr(device, "PERIOD_S", 0.001)
    monkeypatch.setattr(child_process, "take", lambda _program: _process("sleep", "600"))


def test_an_abandoned_compilation_ends_with_its_worker() -> None:
    raiser = NthLine()
    with faulty(pool, raiser) as module:

        def play() -> None:
            with _loop() as loop:
                nth, raiser.left = raiser.left, 0
                workers = module.CompilerPool(loop, Tuning(), 60.0)
                fds = [memfd("model", 1)]
                job = module.Compilation(OptionsJob(platform="4000"), fds, *(lambda *_: None,) * 3)
                workers.submit(job)
                worker = job.worker
                raiser.left = nth
                with suppress(KeyError):
                    workers.abandon(job)
                raiser.left = 0
                workers.abandon(job)  # as its session does when it is ended for the error
                assert job.ended, raiser.where
                assert worker.killed, raiser.where
                _run(loop, lambda: not workers._workers)
                workers.close(0.0)

        _at_each_line(raiser, play, 2)


def _play(module: ModuleType, raiser: NthLine, use: Callable[[Any, Any, Any], None]) -> None:
    """Call `use(loop, device, its second function)` with an error at the next line."""
    nth, raiser.left = raiser.left, 0
    settings = DaemonSettings(socket="", tuning=Tuning(function_idle_s=0.0))
    page = StatusPage(1)
    with _loop() as loop:
        one = module.Device(settings.device_infos()[0], loop, page, settings, BanPolicy(), itertools.count(1))
        quota = Quota(9, "", "functions", "this user", "context")
        function = one.open_function(_ANOTHER, quota, "process 1")
        try:
            raiser.left = nth
            use(loop, one, function)
        finally:
            raiser.left = 0
            one.close(0.0)
            page.close()


@pytest.mark.parametrize("where", [device, virtual_function])
def test_a_function_is_ended_with_all_that_it_has(where: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    raiser = NthLine()
    with faulty(where, raiser) as module:
        vars(module).update(PERIOD_S=0.001)
        if where is virtual_function:
            monkeypatch.setattr(device, "VirtualFunction", module.VirtualFunction)

        def use(loop: Any, one: Any, function: Any) -> None:
            gone: list[Any] = []
            one.on_function_gone = gone.append
            _run(loop, lambda: bool(gone))
            assert gone == [function], raiser.where
            assert not one._held, raiser.where
            assert not one._ending, raiser.where

        _at_each_line(raiser, lambda: _play(module if where is device else device, raiser, use), 3)


def test_what_is_on_its_way_out_of_an_engine_is_given_back_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    raiser = NthLine()
    with faulty(virtual_function, raiser) as module:
        monkeypatch.setattr(device, "VirtualFunction", module.VirtualFunction)

        def use(loop: Any, _device: Any, function: Any) -> None:
            nth, raiser.left = raiser.left, 0
            dropped: list[bool] = []
            context = SimpleNamespace(number=1)  # which keeps the function in use
            function._draining.add_segment(context, 1, lambda: dropped.append(True))
            os.kill(function.engine_pid, signal.SIGKILL)
            raiser.left = nth
            _run(loop, lambda: bool(dropped))
            assert dropped, raiser.where

        _at_each_line(raiser, lambda: _play(device, raiser, use), 3)
