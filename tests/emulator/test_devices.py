"""Several devices in one daemon: each has its own engine, isolated from the others."""

from __future__ import annotations

import pytest

from softnpu.driver import Driver, ZeResult
from softnpu.emulator.interface import messages as msg
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.wire import Wire, WireContext
from tests.support.work import LONG, barrier, check_works, execute, failure, run, waits

_PLATFORMS = ("3720", "4000", "5020")


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    return start_daemon(devices=_PLATFORMS)


def test_each_device_has_its_platform_its_engine_and_its_memory(daemon: Daemon, driver: Driver) -> None:
    infos = [device.info for device in driver.devices]
    assert tuple(info.platform for info in infos) == _PLATFORMS
    assert [info.index for info in infos] == [0, 1, 2]
    assert [info.tiles for info in infos] == [2, 6, 1]
    assert [info.device_id for info in infos] == [0x7D1D, 0x643E, 0xFD3E]
    assert len({info.uuid for info in infos}) == 3
    contexts = [device.create_context() for device in driver.devices]
    for context in contexts:
        check_works(context)
    used = [engine.memory_used for engine in daemon.status().engines]
    memory = contexts[2].alloc_host(1 << 20)
    engines = daemon.status().engines
    assert len({engine.engine_pid for engine in engines}) == 3
    assert [(engine.contexts, engine.submissions) for engine in engines] == [(1, 1)] * 3
    assert [engine.memory_used for engine in engines] == [used[0], used[1], used[2] + memory.size]

    queues = [context.create_command_queue() for context in contexts]
    gates = [context.create_event() for context in contexts]
    fences = [execute(q, waits(c, g)) for q, c, g in zip(queues, contexts, gates, strict=True)]
    for gate, fence in zip(reversed(gates), reversed(fences), strict=True):
        gate.host_signal()  # devices run concurrently: the last one ends first
        assert fence.host_synchronize(LONG)

    daemon.kill_engine(1)
    for queue, context in zip(queues, contexts, strict=True):
        run(queue, barrier(context))
    after = daemon.status().engines
    assert [engine.restarts for engine in after] == [0, 1, 0]
    assert [one.engine_pid == two.engine_pid for one, two in zip(after, engines, strict=True)] == [
        True,
        False,
        True,
    ]


def test_objects_of_one_device_are_unknown_on_another(daemon: Daemon, driver: Driver) -> None:
    first, second = (driver.devices[index].create_context() for index in (0, 1))
    fence = execute(first.create_command_queue(), barrier(second))
    failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT)
    check_works(first)
    with Wire(daemon.socket) as wire:
        wire.hello()
        memory = WireContext(wire, 0).alloc(4096)
        for device in (0, 1):
            queue = WireContext(wire, device).queue()
            assert queue.wait(queue.submit(memory, 32)) == ZeResult.ERROR_INVALID_ARGUMENT
        info = wire.info(msg.ContextCreate(device=3))
    assert info.result == ZeResult.ERROR_INVALID_ARGUMENT
    assert "0 to 2" in info.expected
