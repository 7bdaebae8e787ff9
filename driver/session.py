"""The session of this process with one daemon, as seen by its devices and contexts."""

from __future__ import annotations

from softnpu.driver.connection import Connection
from softnpu.driver.handle import Handle
from softnpu.emulator.interface import messages as msg


class Session(Handle):
    """A session; everything created through it ends with it."""

    def __init__(self, connection: Connection, session: int) -> None:
        self._connection = connection
        self.session = session
        """Its number, as shown by `softnpu status`."""
        self._register(None, connection, connection.close)

    @property
    def lost(self) -> bool:
        """Whether the daemon is gone: every call then raises DEVICE_LOST."""
        return self._connection.is_lost()

    def activity(self, call: str = "zeDriverGetProperties") -> list[msg.ActivityAnswer]:
        """Return the activity of sessions, models and compilations, in the parts of the daemon's answer."""
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
        """Return the state of the daemon."""
        self._check(call)
        answer, _ = self._connection.request(call, msg.Status(), msg.StatusAnswer)
        return answer
