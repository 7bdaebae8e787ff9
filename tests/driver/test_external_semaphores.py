"""POSIX semaphores of other programs: waits consume nothing, and killed waiters swallow no post."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import posix_ipc
import pytest

from softnpu.driver import Context, Device, ExternalSemaphore, ZeError, ZeResult
from tests.conftest import StartContext, StartPython
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.work import LONG, SECOND, failure


@pytest.fixture
def theirs(posix_name: str) -> Iterator[posix_ipc.Semaphore]:
    """Another program's semaphore, with value 0."""
    semaphore = posix_ipc.Semaphore(posix_name, posix_ipc.O_CREX, mode=0o600)
    yield semaphore
    semaphore.unlink()
    semaphore.close()


@pytest.fixture
def device(context: Context) -> Device:
    """The device of the test's session."""
    return context.device


@pytest.fixture
def ours(device: Device, theirs: posix_ipc.Semaphore) -> ExternalSemaphore:
    """The same semaphore."""
    return device.import_external_semaphore(theirs.name)


def test_both_sides_see_one_value(ours: ExternalSemaphore, theirs: posix_ipc.Semaphore) -> None:
    assert not ours.wait(0)
    assert not ours.take()
    theirs.release()
    assert ours.value == 1
    assert ours.wait(0)
    assert theirs.value == 1, "a wait takes nothing"
    assert ours.take()
    assert theirs.value == 0
    ours.signal()
    theirs.acquire(5)


def test_a_post_wakes_every_waiter(ours: ExternalSemaphore, theirs: posix_ipc.Semaphore) -> None:
    """A post wakes one sleeper: one that does not consume it must wake the next."""
    ended: list[str] = []

    def taking() -> None:
        theirs.acquire(60)
        ended.append("taker")

    def waiting() -> None:
        assert ours.wait(LONG)
        ended.append("waiter")

    threads = [threading.Thread(target=call) for call in (taking, waiting, waiting)]
    for thread in threads:
        thread.start()
    wait_until(lambda: _sleepers(theirs) == len(threads), what="all to sleep")
    for _ in threads:
        theirs.release()
    for thread in threads:
        thread.join(30)
    assert sorted(ended) == ["taker", "waiter", "waiter"]
    assert _sleepers(theirs) == 0


def _sleepers(semaphore: posix_ipc.Semaphore) -> int:
    """Return the number of sleepers that the C library counts."""
    data = Path(f"/dev/shm/sem.{semaphore.name[1:]}").read_bytes()
    return int.from_bytes(data[4:8], "little")


def test_a_wait_ends_at_its_deadline(ours: ExternalSemaphore) -> None:
    assert not ours.wait(SECOND // 20)


def test_a_wait_ends_with_the_daemon(start_context: StartContext, theirs: posix_ipc.Semaphore) -> None:
    daemon, context = start_context()
    ours = context.device.import_external_semaphore(theirs.name)
    killer = threading.Thread(target=daemon.kill)
    killer.start()
    failure(partial(ours.wait, LONG), ZeResult.ERROR_DEVICE_LOST)
    killer.join()
    context.device.driver.destroy()
    failure(ours.signal, ZeResult.ERROR_INVALID_NULL_HANDLE)


def test_a_turn_signals_and_takes_only_after_its_work_succeeded(
    ours: ExternalSemaphore, theirs: posix_ipc.Semaphore, device: Device
) -> None:
    done = posix_ipc.Semaphore(theirs.name + "-done", posix_ipc.O_CREX, mode=0o600)
    results = device.import_external_semaphore(done.name)
    with ours.turn(results, 0) as arrived:
        assert not arrived
    theirs.release()
    with pytest.raises(ZeroDivisionError), ours.turn(results, 0):
        raise ZeroDivisionError
    assert (theirs.value, done.value) == (1, 0)
    with ours.turn(results, 0) as arrived:
        assert arrived
        assert (theirs.value, done.value) == (1, 0)
    assert (theirs.value, done.value) == (0, 1)
    theirs.release()
    with pytest.raises(ZeError, match="taken by another program"), ours.turn():
        theirs.acquire()
    done.unlink()
    done.close()


TURN = """
from pathlib import Path
from softnpu.driver import Driver
device = Driver.open(Path(given["socket"])).devices[0]
arrived, done = (device.import_external_semaphore(name) for name in given["names"])
with arrived.turn(done):
    say("at work")
    hear()
"""


def test_a_killed_program_leaves_its_turn_to_the_next(
    daemon: Daemon, theirs: posix_ipc.Semaphore, start_python: StartPython
) -> None:
    done = posix_ipc.Semaphore(theirs.name + "-done", posix_ipc.O_CREX, mode=0o600)
    start = partial(start_python, TURN, socket=str(daemon.socket), names=[theirs.name, done.name])
    asleep = start()
    wait_until(lambda: _sleepers(theirs) == 1, what="it to sleep")
    asleep.kill()
    theirs.release()
    at_work = start()
    assert at_work.hear() == "at work"
    at_work.kill()
    assert (theirs.value, done.value) == (1, 0)
    last = start()
    assert last.hear() == "at work"
    last.tell("go on")
    last.finish(30)
    assert (theirs.value, done.value) == (0, 1)
    done.unlink()
    done.close()


def test_invalid_semaphores_are_refused(device: Device, theirs: posix_ipc.Semaphore) -> None:
    opened = device.import_external_semaphore
    Path(f"/dev/shm/sem.{theirs.name[1:]}-file").write_bytes(b"no semaphore")
    for name, result in (
        (theirs.name + "-none", ZeResult.ERROR_NOT_AVAILABLE),
        ("frames", ZeResult.ERROR_INVALID_ARGUMENT),
        (theirs.name + "-file", ZeResult.ERROR_INVALID_ARGUMENT),
    ):
        failure(partial(opened, name), result)
    Path(f"/dev/shm/sem.{theirs.name[1:]}-file").unlink()
