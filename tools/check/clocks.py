"""Happens-before: which commands of other queues have ended before a command begins.

A clock has, for each queue, the number of its commands that are over. Clocks are never changed, so that they
can be shared.
"""

from __future__ import annotations

from collections.abc import Mapping

Queue = tuple[int, int]
"""A queue: its session and its handle."""
HOST: Queue = (0, 0)
"""What programs do to events, as a queue."""
Clock = Mapping[Queue, int]

NOTHING: Clock = {}


def join(one: Clock, other: Clock) -> Clock:
    """Return the clock at which everything of both is over."""
    if one is other or not other:
        return one
    if not one:
        return other
    later = {queue: number for queue, number in other.items() if number > one.get(queue, 0)}
    return {**one, **later} if later else one


def with_queue(clock: Clock, queue: Queue, number: int) -> Clock:
    """Return the clock at which also the first `number` commands of a queue are over."""
    return clock if clock.get(queue, 0) >= number else {**clock, queue: number}


def meet(one: Clock, other: Clock) -> Clock:
    """Return the clock at which only what is over in both is over."""
    return {queue: min(number, other[queue]) for queue, number in one.items() if queue in other}
