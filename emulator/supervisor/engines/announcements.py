"""Announcements of objects to a device's engine; a new engine receives all of them again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.engines.ban_policy import DeviceBans
from softnpu.emulator.supervisor.internal_errors import is_shortage
from softnpu.emulator.supervisor.parked_files import borrowed
from softnpu.emulator.supervisor.state.images import Image
from softnpu.emulator.supervisor.state.objects import Context, Graph, Queue

Post = Callable[[link.EngineCommand, list[int]], None]

log = logging.getLogger(__name__)


class Announcements:
    """Commands to the engine about contexts and their objects.

    `tell` announces new objects, with descriptors, or raises and sends nothing. `post` reports changes.
    """

    def __init__(self, tell: Post, post: Post, bans: DeviceBans) -> None:
        self._tell = tell
        self._post = post
        self._bans = bans

    def context(self, context: Context) -> None:
        """Announce a context with all its objects."""
        self._tell(link.ContextAdd(context=context.number, session=context.session), [context.doorbell])
        context.told = True
        for segment in context.memory.segments:
            self.segment(context, segment)
        handles = list(context.allocations)
        for first in range(0, len(handles), link.MOST_PLACED):
            self.memory(context, *handles[first : first + link.MOST_PLACED])
        for graph in context.graphs.values():
            if graph.initialized:
                self.graph(graph)
        for queue in context.queues.values():
            self.queue(queue)

    def segment(self, context: Context, segment: int) -> None:
        record = context.memory.segments[segment]
        self._tell(
            link.SegmentAdd(
                context=context.number,
                segment=segment,
                size=record.size,
                start=record.start,
                foreign=record.foreign,
                read_only=record.read_only,
            ),
            [record.fd],
        )

    def memory(self, context: Context, *handles: int) -> None:
        placed = []
        for handle in handles:
            memory = context.allocations[handle]
            placed.append(link.Placed(handle, memory.segment.number, memory.offset, memory.size))
        self._tell(link.MemoryAdd(context=context.number, allocations=tuple(placed)), [])

    def memory_freed(self, context: Context, handle: int) -> None:
        self._post(link.MemoryDrop(context=context.number, memory=(handle,)), [])

    def segment_freed(self, context: Context, segment: int) -> None:
        self._post(link.SegmentDrop(context=context.number, segment=segment), [])

    def queue(self, queue: Queue) -> None:
        command = link.QueueAdd(
            context=queue.context.number,
            queue=queue.handle,
            ring=queue.ring.handle,
            slots=queue.slots,
            priority=queue.priority,
            turbo=queue.turbo,
            state=queue.state,
            poisoned=queue.poisoned,
            background=self._bans.in_background(queue),
            poisoned_info=queue.poisoned_info,
        )
        self._tell(command, [])
        queue.told = True
        if queue.lost is not None:
            self._bans.lose(queue, queue.lost)

    def graph(self, graph: Graph) -> None:
        command = link.GraphAdd(context=graph.context.number, graph=graph.handle, image=graph.image.number)
        self._tell(command, [])

    def image(self, image: Image) -> None:
        command = image_load(image)
        try:
            with borrowed(image.fds, image.owner) as fds:
                self._tell(command, fds)
        except OSError as error:
            if is_shortage(error):
                raise
            log.error("image %d: its files cannot be given to the engine: %s", image.number, error)
            self._tell(command, [])  # which refuses it


def image_load(image: Image) -> link.ImageLoad:
    """Return the command that loads an image."""
    return link.ImageLoad(
        image=image.number,
        state=image.record,
        blob_length=image.answer.blob_length,
        placement_length=image.answer.placement_length,
        weights=image.weights,
        check=image.must_be_compared,
        files=image.answer.files,
        hint=image.hint,
        session=image.session,
    )
