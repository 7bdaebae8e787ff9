"""Which queue runs next: the highest priority first, then the context that has had the least time.

Among the queues of one context it is the one that has waited longest.
"""

from __future__ import annotations

from softnpu.emulator.engine.queue import EngineQueue


def pick(queues: list[EngineQueue]) -> EngineQueue | None:
    """The queue whose submission runs next; None when no queue has one."""
    best: EngineQueue | None = None
    for queue in queues:
        if not queue.pending():
            continue
        if best is None or (queue.priority, -queue.context.spent_ns, -queue.ran_ns) > (
            best.priority,
            -best.context.spent_ns,
            -best.ran_ns,
        ):
            best = queue
    return best
