"""Memory released by idle contexts: decoded programs, staging, and unused images.

An evicted image is reloaded automatically when a command needs it, from the supervisor's copy, so the results
are the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.engines.announcements import Post
from softnpu.emulator.supervisor.engines.image_loads import ImageLoads
from softnpu.emulator.supervisor.engines.queue_states import QueueStates
from softnpu.emulator.supervisor.reactor import Reactor, Timer
from softnpu.emulator.supervisor.state.objects import Activity, Context, Graph

_QUICK_MS = 250.0
_CHECKS = 4  # within the time after which a context is idle
_SHORTEST_S = 0.025
_LONGEST_S = 60.0


class IdleMemory:
    """Releases memory of one device's contexts; with `prunes` also automatically, once they are idle.

    For a program that has not chosen a time, restoring must be quick: its images stay if they are slow to
    load.
    """

    def __init__(
        self,
        contexts: Mapping[int, Context],
        states: QueueStates,
        loads: ImageLoads,
        post: Post,
        reactor: Reactor,
        prunes: bool,
    ) -> None:
        self._contexts = contexts
        self._states = states
        self._loads = loads
        self._post = post
        self._reactor = reactor
        self._prunes = prunes
        self._timer: Timer | None = None

    def release(self, context: Context, slow_images: bool = True) -> None:
        """Release the memory kept for the context's next commands; a no-op while one runs.

        An image is evicted once its last context has released it.
        """
        if self._release(context, slow_images):
            self._evict_unused([context])

    def _release(self, context: Context, slow_images: bool) -> bool:
        """Release what the engine keeps for the context alone; return False while a command runs."""
        idle, activity = context.idle, self._activity(context)
        if activity is None:
            return False
        # one message to the engine: a client may ask faster than it can follow
        if activity != idle.released or slow_images > idle.released_slow:
            idle.released, idle.released_slow = activity, slow_images
            self._post(link.ContextRelease(context=context.number), [])
        return True

    def _evict_unused(self, released: list[Context]) -> None:
        """Evict the images of these contexts that no context needs: each graph is looked at once or twice."""
        unused = {graph.image.number: graph.image for context in released for graph in _initialized(context)}
        for user in self._contexts.values():
            images = [graph.image for graph in _initialized(user) if graph.image.number in unused]
            if not images:
                continue
            idle = user.idle
            is_idle = idle.released is not None and idle.released == self._activity(user)
            for image in images:
                if not is_idle or (not idle.released_slow and image.load_ms > _QUICK_MS):
                    unused.pop(image.number, None)
        for image in unused.values():
            self._loads.evict(image)

    def restore(self, report: link.ImageNeeded) -> None:
        """Load an image again, for a command of a context that had given it back."""
        self._loads.restore(report.image)
        self.watch()

    def watch(self) -> None:
        """Look now and then which contexts have become idle, as long as there is something to give back."""
        if self._prunes and self._timer is None:
            times = [context.idle.after_ms for context in self._contexts.values() if self._may_prune(context)]
            if times:
                pause = min(_LONGEST_S, max(_SHORTEST_S, min(times) / 1e3 / _CHECKS))
                self._timer = self._reactor.after(pause, self._on_timer)

    def watch_anew(self) -> None:
        """Watch, after a time was chosen."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.watch()

    def _on_timer(self) -> None:
        self._timer = None
        now = time.monotonic()
        self._evict_unused(
            [context for context in list(self._contexts.values()) if self._prune(context, now)]
        )
        self.watch()

    def _prune(self, context: Context, now: float) -> bool:
        """Release an idle context's memory; return whether it was idle for long enough."""
        if not self._may_prune(context):
            return False
        idle, activity = context.idle, self._activity(context)
        if activity is None or activity != idle.seen:
            idle.seen, idle.since = activity, now
            return False
        return now - idle.since >= idle.after_ms / 1e3 and self._release(context, slow_images=idle.chosen)

    def _may_prune(self, context: Context) -> bool:
        """Whether it wants to give back what it does not use, and has used something since it last did."""
        idle = context.idle
        if not idle.enabled or not any(_initialized(context)):
            return False
        return idle.released is None or idle.released != self._activity(context)

    def _activity(self, context: Context) -> Activity | None:
        """Return the ended submissions of each of its queues; None while one is in progress."""
        activity = []
        for queue in context.queues.values():
            completed = self._states.completed(queue.state)
            if completed is None:
                return None
            activity.append((queue.handle, completed))
        return tuple(activity)


def _initialized(context: Context) -> Iterator[Graph]:
    return (graph for graph in context.graphs.values() if graph.initialized)
