"""Doorbells that the C++ part of the engine hears."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import pytest

from softnpu.emulator.engine.queues.queue import Place
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface.commands import MemoryAt
from tests.support.fast_path import DATA, Rig, Session
from tests.support.waiting import wait_until

pytestmark = pytest.mark.quick

_FILL = cmd.Fill(MemoryAt(DATA, 0), 64, b"\7")


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def _asleep(rig: Rig, *sessions: Session) -> None:
    """Put their queues to sleep, and let C++ wait for their doorbells instead of returning at once."""
    for session in sessions:
        rig.poller.register(session.doorbell, select.EPOLLIN | select.EPOLLET)
        rig.queues.awake.discard(session.queue)
        rig.queues.put_to_sleep([session.queue])
    os.eventfd_read(rig.channel)


def test_a_doorbell_is_heard_without_python_whether_there_is_work_or_not(rig: Rig) -> None:
    """While an image is loaded, Python may take milliseconds to answer; a neighbour rang all the time."""
    busy, sleeper = rig.session(), rig.session()
    for session in (busy, sleeper):
        rig.teach(session, _FILL)
    _asleep(rig, sleeper)
    os.eventfd_write(sleeper.doorbell, 1)
    busy.submit()

    def neighbour() -> None:
        try:
            wait_until(lambda: busy.ring.completed == 3, what="a submission, after a ring in vain")
            sleeper.submit()
            os.eventfd_write(sleeper.doorbell, 1)
            wait_until(lambda: sleeper.ring.completed == 3, what="another one, after a ring")
        finally:
            os.eventfd_write(rig.channel, 1)

    thread = threading.Thread(target=neighbour)
    thread.start()
    assert rig.fast_path.call() == [rig.channel]
    thread.join()
    assert (busy.ring.completed, sleeper.queue.completed) == (3, 3)
    assert not rig.queues.awake
    assert {busy.queue.place, sleeper.queue.place} == {Place.ASLEEP}


def test_a_sleeper_with_work_for_python_is_awake_there(rig: Rig) -> None:
    busy, sleeper = rig.session(), rig.session()
    rig.teach(busy, _FILL)
    _asleep(rig, sleeper)
    sleeper.record(_FILL)
    sleeper.submit()
    os.eventfd_write(sleeper.doorbell, 1)
    assert rig.fast_path.call() is None
    assert list(rig.queues.awake) == [sleeper.queue]
    assert sleeper.queue.place is Place.AWAKE
    rig.runner.run(sleeper.queue)
    assert sleeper.ring.completed == 1
