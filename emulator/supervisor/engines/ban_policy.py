"""Bans: processes whose submissions reset the device are throttled first, then refused for a while.

One reset may be bad luck. From the second within a minute the process is throttled: its queues run only when
no others have work, and new queues are delayed. From the fourth its queues are lost, and it is refused new
contexts and queues until a minute has passed since the last reset.

The resets of each user other than the owner are also counted together: from the eighth within a minute all
processes of that user are refused new contexts, queues and graphs, and one that causes another loses its
queues.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from softnpu.emulator.common import process_identity
from softnpu.emulator.interface.records import RING_LOST, StatusWord
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse
from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.reactor import Reactor
from softnpu.emulator.supervisor.state.objects import Context, Queue

log = logging.getLogger(__name__)

SLOW_FROM = 2
REFUSE_FROM = 4
REFUSE_USER_FROM = 8
_WINDOW_S = 60.0
_LOST = (1).to_bytes(4, sys.byteorder)
_FIRST_DELAY_S = 0.5
_MAX_PROCESSES = 4096
_MOST_OF_USER = 255
_EXPECTED = f"fewer than {REFUSE_FROM}"
_HINT = "find out why its commands hang or crash; the daemon's log names each of them"


def ban_key(pid: int, session: int) -> str:
    """Return the key that resets count under: the process, so that a new session is no fresh start."""
    try:
        return f"process {pid}.{process_identity.start_time(pid)}"
    except OSError:
        return f"session {session}"


class BanPolicy:
    """Counts the engine resets of each process, over all devices of the daemon."""

    def __init__(self, window_s: float = _WINDOW_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.window_s = window_s
        self._clock = clock
        self._resets: dict[str, list[float]] = {}
        self._of_users: dict[int, list[float]] = {}

    def add_reset(self, key: str) -> int:
        """Count one more reset and return how many there were within the window."""
        if len(self._resets) >= _MAX_PROCESSES:
            self._resets = {name: times for name in self._resets if (times := self._recent(name))}
        times = self._recent(key)
        times.append(self._clock())
        self._resets[key] = times
        return len(times)

    def add_reset_of_user(self, uid: int) -> None:
        """Count one more reset of a user's; those of the daemon's owner and root are not counted."""
        if uid not in (os.getuid(), 0):
            self._of_users[uid] = [*self._recent_of_user(uid)[-_MOST_OF_USER:], self._clock()]

    def is_user_refused(self, uid: int) -> bool:
        """Whether all processes of the user are refused new objects."""
        return len(self._recent_of_user(uid)) >= REFUSE_USER_FROM

    def check(self, key: str, uid: int, object: str, count: Callable[[StatusWord], None]) -> None:
        """Refuse a process, or a user, whose submissions have reset engines too often.

        `count` increments a status word.
        """
        if self.is_refused(key):
            count(StatusWord.REFUSALS)
            raise self.refusal(key, object, ZeResult.ERROR_NOT_AVAILABLE)
        if self.is_user_refused(uid):
            count(StatusWord.REFUSALS)
            raise self.refusal_of_user(uid, object, ZeResult.ERROR_NOT_AVAILABLE)

    def count(self, key: str) -> int:
        """Return the number of resets within the window."""
        return len(self._recent(key)) if self._resets else 0

    def is_slowed(self, key: str) -> bool:
        """Whether the process is throttled to the background."""
        return self.count(key) >= SLOW_FROM

    def is_refused(self, key: str) -> bool:
        """Whether the process is refused."""
        return self.count(key) >= REFUSE_FROM

    def delay_s(self, key: str) -> float:
        """Return the delay of a new queue for the process."""
        count = self.count(key)
        return _FIRST_DELAY_S * 2.0 ** (count - SLOW_FROM) if count >= SLOW_FROM else 0.0

    def refusal(self, key: str, object: str, result: ZeResult) -> Refused:
        """Return the error for a refused process, with the time until it may come back."""
        times = self._recent(key)
        left_s = max(0.0, times[-1] + self.window_s - self._clock()) if times else 0.0
        found = (
            f"submissions of this process have caused {len(times)} engine resets within "
            f"{self.window_s:g} s; refused for {left_s:.0f} s more"
        )
        return refuse(result, object, found=found, expected=_EXPECTED, hint=_HINT)

    def refusal_of_user(self, uid: int, object: str, result: ZeResult) -> Refused:
        """Return the error for all processes of a refused user, with the time until one may come back."""
        times = self._recent_of_user(uid)
        left_s = max(0.0, times[-REFUSE_USER_FROM] + self.window_s - self._clock())
        found = (
            f"submissions of user {uid} have caused {len(times)} engine resets within "
            f"{self.window_s:g} s; refused for {left_s:.0f} s more"
        )
        return refuse(result, object, found=found, expected=f"fewer than {REFUSE_USER_FROM}", hint=_HINT)

    def _recent_of_user(self, uid: int) -> list[float]:
        # forgiven one by one: a user also has innocent programs
        since = self._clock() - self.window_s
        return [time for time in self._of_users.get(uid, ()) if time > since]

    def _recent(self, key: str) -> list[float]:
        times = self._resets.get(key, [])
        if not times or times[-1] <= self._clock() - self.window_s:
            return []  # forgiven all together: a persistent process is not readmitted half-way
        return list(times)


class DeviceBans:
    """Apply the policy on one virtual function, of user `uid`.

    `post` sends to its engine, `count` increments a status word.
    """

    def __init__(
        self,
        contexts: Mapping[int, Context],
        policy: BanPolicy,
        reactor: Reactor,
        post: Callable[[link.EngineCommand], None],
        count: Callable[[StatusWord], None],
        uid: int,
    ) -> None:
        self._uid = uid
        self._contexts = contexts
        self._policy = policy
        self._reactor = reactor
        self._post = post
        self._count = count

    def blame(self, key: str, object: str, reason: str) -> None:
        """Count a reset (or an aborted command) against a process, and slow or refuse it."""
        policy = self._policy
        times = policy.add_reset(key)
        policy.add_reset_of_user(self._uid)
        self._count(StatusWord.OFFENCES)
        log.error("%s, %s: %s; %d times within %g s", key, object, reason, times, policy.window_s)
        refused = self._refusal(key)
        if refused is None and not policy.is_slowed(key):
            return
        for queue in self._queues_of(key):
            self.announce_workload(queue)
            if refused is not None and queue.lost is None:
                self.lose(queue, refused)
        self._reactor.after(policy.window_s + 1.0, lambda: self._forgive(key))

    def on_failure(self, report: link.SubmissionFailed) -> None:
        """Record a failed submission: a lost queue stays lost, whatever a client writes into its ring."""
        if report.info.result != ZeResult.ERROR_DEVICE_LOST:
            return
        self._count(StatusWord.ABORTED)
        queue = self._queue_of(report)
        if queue is not None:
            queue.lost = report.info

    def on_refused(self, report: link.QueueRefused) -> None:
        """Record that the engine has no such queue, and tell its client in its place."""
        log.warning("queue %#x of context %d: %s", report.queue, report.context, report.info)
        queue = self._queue_of(report)
        if queue is not None:
            queue.lost = report.info
            with suppress(OSError):  # memory that the client may have sealed
                os.pwrite(queue.ring.segment.fd, _LOST, queue.ring.offset + RING_LOST)

    def _queue_of(self, report: link.SubmissionFailed | link.QueueRefused) -> Queue | None:
        context = self._contexts.get(report.context)
        return None if context is None else context.queues.get(report.queue)

    def in_background(self, queue: Queue) -> bool:
        """Whether the queue runs in the background, by its client's choice or by throttling."""
        return queue.background or self._policy.is_slowed(queue.context.ban_key)

    def announce_workload(self, queue: Queue) -> None:
        """Tell the engine whether the queue runs in the background now."""
        background = self.in_background(queue)
        self._post(
            link.QueueWorkload(context=queue.context.number, queue=queue.handle, background=background)
        )

    def lose(self, queue: Queue, info: ErrorInfo) -> None:
        """Mark the queue lost: it runs nothing from now on."""
        queue.lost = info
        self._post(link.QueueLose(context=queue.context.number, queue=queue.handle, info=info))

    def check(self, key: str, object: str) -> None:
        """Refuse a process, or its user, whose submissions have reset engines too often."""
        self._policy.check(key, self._uid, object, self._count)

    def delay_s(self, key: str) -> float:
        """Return the delay of a new queue for a process."""
        return self._policy.delay_s(key)

    def _refusal(self, key: str) -> ErrorInfo | None:
        """Return the error for the queues of a process that has just caused a reset, if they are lost."""
        policy, result = self._policy, ZeResult.ERROR_DEVICE_LOST
        if policy.is_refused(key):
            return policy.refusal(key, "command queue", result).info
        if policy.is_user_refused(self._uid):
            return policy.refusal_of_user(self._uid, "command queue", result).info
        return None

    def _forgive(self, key: str) -> None:
        if not self._policy.is_slowed(key):
            for queue in self._queues_of(key):
                self.announce_workload(queue)

    def _queues_of(self, key: str) -> list[Queue]:
        contexts = [context for context in self._contexts.values() if context.ban_key == key]
        return [queue for context in contexts for queue in context.queues.values()]
