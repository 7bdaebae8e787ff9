"""The engine's log of its queues and pings, in memory that outlives it and that no client maps."""

from __future__ import annotations

import fcntl
import os
import struct
from collections import deque
from typing import NamedTuple

from softnpu.emulator.common import linux
from softnpu.emulator.common.untrusted_fds import close_untrusted
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.state.usage import QueueUsage
from softnpu.emulator.supervisor.undoing import undoing

_WORD = struct.Struct("=Q")
_USAGE = struct.Struct("=4Q")


class Running(NamedTuple):
    """A running submission: its number, current command, and start of that (CLOCK_MONOTONIC)."""

    sequence: int
    step: int
    since_ns: int


class QueueStates:
    """The queue records of one device. The engine writes them, the supervisor hands them out and reads.

    `staging`: what an engine has computed and not copied to its target when it dies. Never mapped here.
    """

    def __init__(self) -> None:
        with undoing() as undo:
            self.fd = linux.fixed_memfd("queue-states", link.STATES_SIZE)
            undo.callback(os.close, self.fd)
            self.staging = linux.memfd("staging")
            undo.callback(os.close, self.staging)
            linux.seal(self.staging, fcntl.F_SEAL_SEAL)  # an engine keeps its size from no other
            self._map = linux.map_shared(self.fd, link.STATES_SIZE)
        self._free = list(range(link.QUEUE_STATES - 1, -1, -1))
        # reused as late as possible: an engine may still end an inference of a dropped image
        self._free_images = deque(range(link.IMAGE_STATES))
        self._injections = 0

    def take(self, device: int) -> int:
        """Return a zeroed record."""
        if not self._free:
            raise refuse(
                ZeResult.ERROR_OUT_OF_HOST_MEMORY,
                f"device {device}",
                found=f"{link.QUEUE_STATES} queues exist",
                expected="fewer",
                hint="destroy queues that are no longer used",
            )
        state = self._free[-1]
        start = state * link.QUEUE_STATE_SIZE
        self._map[start : start + link.QUEUE_STATE_SIZE] = bytes(link.QUEUE_STATE_SIZE)
        return self._free.pop()

    def free(self, state: int) -> None:
        """Make the record available for another queue: no engine writes to it any more."""
        self._free.append(state)

    def completed(self, state: int) -> int | None:
        """Return the number of ended submissions of this queue; None while one has begun or waits."""
        completed, running, _, reached = link.QUEUE_STATE.unpack_from(
            self._map, state * link.QUEUE_STATE_SIZE
        )
        started = completed + 1 in (running, reached >> link.REACHED_BITS)
        return None if started else completed

    def running(self, state: int) -> Running | None:
        """Return the running submission of this queue, if any."""
        completed, running, since, reached = link.QUEUE_STATE.unpack_from(
            self._map, state * link.QUEUE_STATE_SIZE
        )
        if running != completed + 1:
            return None
        mine = reached >> link.REACHED_BITS == running
        return Running(running, reached & link.REACHED_MASK if mine else 0, since)

    def usage(self, state: int) -> QueueUsage:
        """Return the usage of its submissions so far."""
        start = state * link.QUEUE_STATE_SIZE
        completed, running, *_ = link.QUEUE_STATE.unpack_from(self._map, start)
        usage = _USAGE.unpack_from(self._map, start + 8 * link.STATE_SPENT)
        return QueueUsage(completed, running == completed + 1, *usage)

    def check_image(self) -> None:
        """Refuse one more image than there are records."""
        if not self._free_images:
            raise refuse(
                ZeResult.ERROR_OUT_OF_HOST_MEMORY,
                "graph",
                found=f"{link.IMAGE_STATES} models on this device",
                expected="fewer",
                hint="destroy graphs that are no longer used",
            )

    def take_image(self) -> int:
        """Return a zeroed record of an image; `check_image` before."""
        link.IMAGE_STATE.pack_into(self._map, _image_at(self._free_images[0]), 0, 0)
        return self._free_images.popleft()

    def free_image(self, state: int) -> None:
        """Make the record available for another image."""
        self._free_images.append(state)

    def image_usage(self, state: int) -> tuple[int, int]:
        """Return the inferences of an image, and the nanoseconds that they took."""
        inferences, time_ns = link.IMAGE_STATE.unpack_from(self._map, _image_at(state))
        return inferences, time_ns

    def clear_running(self, state: int) -> None:
        """Note that nothing of this queue runs; only while no engine lives."""
        _WORD.pack_into(self._map, state * link.QUEUE_STATE_SIZE + 8 * link.STATE_RUNNING, 0)

    def liveness(self) -> tuple[int, int]:
        """Return the last ping that was read, and the CPU time of the engine's other threads by then."""
        answered, others_ns = link.LIVENESS_WORDS.unpack_from(self._map, link.LIVENESS)
        return answered, others_ns

    def clear_liveness(self) -> None:
        """Reset the answers to pings: a new engine begins."""
        link.LIVENESS_WORDS.pack_into(self._map, link.LIVENESS, 0, 0)
        self._injections = 0
        _WORD.pack_into(self._map, link.LIVENESS + 8 * link.INJECTION_MESSAGES, 0)

    def set_commands_pending(self, pending: bool) -> None:
        """Note whether the engine has yet to receive commands about what clients know already."""
        _WORD.pack_into(self._map, link.LIVENESS + 8 * link.MESSAGES_WAITING, pending)

    def count_injection(self) -> None:
        """Count one more command about injections that was sent to the engine."""
        self._injections += 1
        _WORD.pack_into(self._map, link.LIVENESS + 8 * link.INJECTION_MESSAGES, self._injections)

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)
        close_untrusted((self.staging,))  # who has the last one gives its pages back, which takes a while


def _image_at(state: int) -> int:
    return link.IMAGE_STATES_AT + state * link.IMAGE_STATE.size
