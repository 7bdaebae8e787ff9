"""Several devices in one daemon: each its own engine, nothing of one known to another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from softnpu.driver import Context, Driver, ZeResult
from softnpu.emulator.interface import messages as msg
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.wire import Wire, WireContext
from tests.support.work import LONG, barrier, check_works, execute, failure, run, waits

_PLATFORMS = ("3720", "4000", "5010")


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    return start_daemon(devices=_PLATFORMS)


@pytest.fixture
def contexts(driver: Driver) -> Iterator[list[Context]]:
    made = [device.create_context() for device in driver.devices]
    yield made
    for context in made:
        context.destroy()


def test_each_device_is_its_platform(driver: Driver) -> None:
    infos = [device.info for device in driver.devices]

    assert tuple(info.platform for info in infos) == _PLATFORMS
    assert [info.index for info in infos] == [0, 1, 2]
    assert [info.tiles for info in infos] == [2, 6, 3]
    assert [info.device_id for info in infos] == [0x7D1D, 0x643E, 0xB03E]
    assert len({info.uuid for info in infos}) == 3


def test_each_device_has_an_engine_that_works(daemon: Daemon, contexts: list[Context]) -> None:
    for context in contexts:
        check_works(context)
    engines = daemon.status().engines
    assert len({engine.engine_pid for engine in engines}) == 3
    assert [engine.contexts for engine in engines] == [1, 1, 1]
    assert all(engine.submissions == 1 for engine in engines)


def test_the_death_of_one_engine_is_not_that_of_another(daemon: Daemon, contexts: list[Context]) -> None:
    queues = [context.create_command_queue() for context in contexts]
    before = [engine.engine_pid for engine in daemon.status().engines]

    daemon.kill_engine(1)

    for queue, context in zip(queues, contexts, strict=True):
        run(queue, barrier(context))
    after = daemon.status().engines
    assert [engine.restarts for engine in after] == [0, 1, 0]
    assert [engine.engine_pid == pid for engine, pid in zip(after, before, strict=True)] == [
        True,
        False,
        True,
    ]


def test_memory_counts_on_its_own_device(daemon: Daemon, contexts: list[Context]) -> None:
    memory = contexts[2].alloc_host(1 << 20)
    assert [engine.memory_used for engine in daemon.status().engines] == [0, 0, memory.size]


def test_memory_of_one_context_is_unknown_in_another_when_appended(contexts: list[Context]) -> None:
    mine, other = contexts[0].alloc_host(64), contexts[1].alloc_host(64)
    commands = contexts[1].create_command_list()

    error = failure(
        lambda: commands.append_memory_copy(other, mine.address, 64), ZeResult.ERROR_UNINITIALIZED
    )

    assert f"{mine.address:#x}" in error.info.object


@pytest.mark.parametrize("device", [0, 1])
def test_handles_of_one_context_are_invalid_in_another(daemon: Daemon, device: int) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        first, second = WireContext(wire, 0), WireContext(wire, device)
        memory = first.alloc(4096)
        queue = second.queue()
        assert queue.wait(queue.submit(memory, 32)) == ZeResult.ERROR_INVALID_ARGUMENT


def test_a_list_of_one_context_fails_on_the_queue_of_another(contexts: list[Context]) -> None:
    fence = execute(contexts[0].create_command_queue(), barrier(contexts[1]))
    failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT)
    check_works(contexts[0])


def test_a_context_on_a_device_that_does_not_exist_is_refused(daemon: Daemon, driver: Driver) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        info = wire.info(msg.ContextCreate(device=len(driver.devices)))
    assert info.result == ZeResult.ERROR_INVALID_ARGUMENT
    assert "0 to 2" in info.expected


def test_queues_of_different_devices_run_at_the_same_time(contexts: list[Context]) -> None:
    gates = [context.create_event() for context in contexts]
    fences = [
        execute(context.create_command_queue(), waits(context, gate))
        for context, gate in zip(contexts, gates, strict=True)
    ]
    for gate, fence in zip(reversed(gates), reversed(fences), strict=True):
        gate.host_signal()
        assert fence.host_synchronize(LONG)
