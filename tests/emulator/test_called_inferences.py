"""Inferences in Python that the C++ part calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from softnpu.emulator.engine.queues.queue import EngineQueue
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.links import engine as link
from softnpu.emulator.openvino.copies import CopyMaker
from tests.support.fast_path import DATA, Rig

pytestmark = pytest.mark.quick

_FILL = cmd.Fill(MemoryAt(DATA, 0), 64, b"\1")
_NEVER = 2**63


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def _called(run_called: Callable[[EngineQueue], bool]) -> SimpleNamespace:
    return SimpleNamespace(can_be_called=True, run_called=run_called, ask_c_model=lambda _: None)


@pytest.mark.parametrize("answer", [True, False, None], ids=["done", "not done", "an exception"])
def test_an_inference_in_python_has_ended_only_if_it_says_so(rig: Rig, answer: bool | None) -> None:
    session = rig.session()
    rig.teach(session, _FILL)
    seen: list[tuple[int, int]] = []

    def run_called(queue: EngineQueue) -> bool:
        seen.append((queue.completed, queue.step))
        if answer is None:
            raise RuntimeError
        return answer

    inference = _called(run_called)
    called = rig.call_to(session, inference)
    tickets = [session.submit(), session.submit()]

    assert rig.call() == bool(answer)

    if answer:
        assert seen == [(2, 0), (3, 0)]  # what it logs is of this submission
        assert session.fence.is_signalled(tickets[1])
    else:
        assert seen == [(2, 0)]
        assert not session.fence.is_signalled(tickets[0])
        assert session.queue.completed == session.state_words[link.STATE_COMPLETED] == 2
        assert session.state_words[link.STATE_RUNNING] == 0
    del called


def test_a_called_inference_handles_no_message_and_is_cancelled_in_the_end(rig: Rig) -> None:
    rig.loop.read_messages = lambda: pytest.fail("a message may drop what C++ uses")
    rig.runner._running.called_until_ns = _NEVER
    assert not rig.runner.is_cancelled()
    rig.runner._running.called_until_ns = 1
    assert rig.runner.is_cancelled()


def test_an_inference_that_is_called_can_still_get_a_c_model(rig: Rig) -> None:
    """It was not short in its first runs, on a busy machine, and never got one."""
    session = rig.session()
    rig.teach(session, _FILL)
    inference = _called(lambda _: True)
    asked: list[CopyMaker] = []
    inference.ask_c_model = asked.append
    called = rig.call_to(session, inference)
    session.submit()
    assert rig.call()
    assert rig.overlap.copies in asked
    del called


def test_an_inference_that_must_not_be_called_any_more_is_forgotten(rig: Rig) -> None:
    session = rig.session()
    rig.teach(session, _FILL)
    inference = _called(lambda _: True)
    called = rig.call_to(session, inference)
    session.submit()
    assert rig.call()

    inference.can_be_called = False
    ticket = session.submit()

    assert not rig.call()
    assert not session.fence.is_signalled(ticket)
    del called
