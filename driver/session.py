"""The session of this process with one daemon, as its devices and contexts use it."""

from __future__ import annotations

from softnpu.driver.connection import Connection
from softnpu.driver.handle import Handle
from softnpu.emulator.interface import messages as msg


class Session(Handle):
    """Everything created through it ends with it."""

    def __init__(self, connection: Connection, session: int) -> None:
        self._connection = connection
        self.session = session
        """Its number, as `softnpu status` shows it."""
        self._register(None, connection, connection.close)

    @property
    def lost(self) -> bool:
        """Whether the daemon is gone: every call raises DEVICE_LOST then."""
        return self._connection.is_lost()

    def activity(self, call: str = "zeDriverGetProperties") -> list[msg.ActivityAnswer]:
        """What sessions, models and compilations of the daemon do, in the parts that it answers in."""
        self._check(call)
        answers: list[msg.ActivityAnswer] = []
        request = msg.Activity()
        while not answers or answers[-1].more:
            answer, _ = self._connection.request(call, request, msg.ActivityAnswer)
            answers.append(answer)
            request = msg.Activity(
                after_session=max((each.session for each in answer.sessions), default=request.after_session),
                after_model=max((each.model for each in answer.models), default=request.after_model),
            )
        return answers

    def status(self, call: str = "zeDriverGetProperties") -> msg.StatusAnswer:
        """The state of the whole daemon."""
        self._check(call)
        answer, _ = self._connection.request(call, msg.Status(), msg.StatusAnswer)
        return answer
