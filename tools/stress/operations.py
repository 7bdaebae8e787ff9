"""The operations of a client's step. Each checks all its results, and leaves the session usable.

The operations below expect no error at all; those that inject faults are in `fault_operations`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final, Protocol, TypeVar

import numpy as np

from softnpu.driver import Allocation, CommandList, Event, Fence, GraphSource, ZeError, ZeResult
from softnpu.driver.graph_creation import import_blob
from softnpu.tools.stress.checking import ArgumentMemory, Inference, WrongResult, check
from softnpu.tools.stress.client_session import (
    WAIT_S,
    LoadedModel,
    Session,
    StateLayout,
    WaitTimeout,
    await_fence,
    submit,
)
from softnpu.tools.stress.plan import Step
from softnpu.tools.stress.progress_page import Field, ProgressPage

_BATCHES: Final = 8
_IN_FLIGHT: Final = 3
_LARGEST: Final = 192 * 1024


T = TypeVar("T")


class Client(Protocol):
    """The client as operations see it."""

    number: int
    progress: ProgressPage
    session: Session

    def reconnect(self) -> None: ...
    def compiling(self, compile: Callable[[], T]) -> T | None: ...
    def share(self, workload: int, sample: int, memory: Allocation | None) -> None: ...


def load_model(client: Client, step: Step) -> LoadedModel | None:
    """Return this step's model on the device; None if a compiler worker was killed under it."""
    return client.compiling(lambda: client.session.loaded(step.workload))


def sample_of(loaded: LoadedModel, step: Step, index: int = 0) -> int:
    """Return this step's sample, or a later one."""
    return (step.sample + index) % loaded.workload.samples


def infer(client: Client, step: Step) -> int:
    """Run one inference after another, waiting for each in one of the available ways."""
    loaded = load_model(client, step)
    if loaded is None:
        return 0
    count = 1 + step.seed % 4
    wait = _WAYS[step.seed // 4 % len(_WAYS)](client, loaded)
    in_place = bool(step.seed & 64)
    for index in range(count):
        sample = sample_of(loaded, step, index)
        for inference in range(loaded.workload.steps):
            fed = loaded.feed(sample, inference, in_place)
            wait(fed)
            loaded.check(fed)
    return count * loaded.workload.steps


def _by_new_fences(client: Client, loaded: LoadedModel) -> Callable[[Inference], None]:
    queue = client.session.queue

    def wait(fed: Inference) -> None:
        fence = queue.create_fence()
        loaded.submit_fed(queue, fence, fed)
        await_fence(fence, f"inference of '{loaded.workload.name}'")

    return wait


def _by_one_fence(client: Client, loaded: LoadedModel) -> Callable[[Inference], None]:
    queue = client.session.queue
    fence = queue.create_fence()

    def wait(fed: Inference) -> None:
        fence.reset()
        loaded.submit_fed(queue, fence, fed)
        await_fence(fence, f"inference of '{loaded.workload.name}' with a fence that is used again")

    return wait


def _by_the_queue(client: Client, loaded: LoadedModel) -> Callable[[Inference], None]:
    queue = client.session.queue

    def wait(fed: Inference) -> None:
        # the fence is only for a report: it identifies the submission
        loaded.submit_fed(queue, queue.create_fence(), fed)
        if not queue.synchronize(int(WAIT_S * 1e9)):
            raise WaitTimeout(f"a queue with an inference of '{loaded.workload.name}' has not ended")

    return wait


def _by_an_event(client: Client, loaded: LoadedModel) -> Callable[[Inference], None]:
    """Await the end before the submission has ended: the next one comes while that is being noted."""
    queue = client.session.queue
    event = client.session.context.create_event()
    lists: dict[StateLayout, CommandList] = {}

    def wait(fed: Inference) -> None:
        layout = loaded.layout_of(fed)
        if layout not in lists:
            lists[layout] = loaded.record(loaded.memory_of(layout), event)
        event.host_reset()
        fence = queue.create_fence()
        submit(queue, lists[layout], fence, [fed])
        if not event.host_synchronize(int(WAIT_S * 1e9)):
            await_fence(fence, "an inference whose event is not signalled")
            raise WaitTimeout("an inference has ended without its event")

    return wait


_WAYS: Final = (_by_new_fences, _by_one_fence, _by_the_queue, _by_an_event)


def burst(client: Client, step: Step) -> int:
    """Put several models' inferences in flight on two queues before waiting."""
    random = Random(step.seed)
    session = client.session
    flights: list[tuple[LoadedModel, Inference]] = []
    count = len(session.workloads)
    for index in range(_IN_FLIGHT):
        workload = (step.workload + index) % count
        made = client.compiling(partial(session.loaded, workload))
        if made is None:
            continue
        if any(made is other for other, _ in flights):
            made = made.with_own_memory()
        queue = random.choice((session.queue, session.other_queue))
        flights.append((made, made.submit(queue, sample_of(made, step, index))))
    random.shuffle(flights)
    for loaded, inference in flights:
        await_fence(inference.fence, f"one of {len(flights)} inferences in flight, '{loaded.workload.name}'")
        loaded.check(inference)
    return len(flights)


def batch(client: Client, step: Step) -> int:
    """Submit one list with many executions, each on its part of larger memory."""
    loaded = load_model(client, step)
    if loaded is None or loaded.graph.meta.states:
        return 0
    context, graph = client.session.context, loaded.graph
    arguments = graph.meta.arguments
    count = 2 + step.seed % (_BATCHES - 1)
    rooms = [-(-argument.byte_size // 64) * 64 for argument in arguments]
    memory = [context.alloc_host(room * count) for room in rooms]
    commands = context.create_command_list()
    parts = []
    for at in range(count):
        sample = sample_of(loaded, step, at)
        pattern, note = loaded.journal.fed(loaded.workload.name, sample, 0)
        blocks, rest = [], []
        for index, (argument, room) in enumerate(zip(arguments, rooms, strict=True)):
            graph.set_argument_value(index, memory[index].address + at * room)
            start, end = at * room, at * room + argument.byte_size
            view = memory[index].view()
            pattern.fill(view[start : start + room])
            blocks.append(ArgumentMemory(argument.name, view[start:end], memory[index].handle, start))
            rest.append((view[end : start + room], view[end : start + room].tobytes()))
        inputs, outputs = blocks[: loaded.workload.inputs], blocks[loaded.first_output :]
        for block, array in zip(inputs, loaded.samples.inputs(sample), strict=True):
            block.view[:] = np.frombuffer(array.tobytes(), np.uint8)
        workload, samples = loaded.workload, loaded.samples
        parts.append(Inference(workload, samples, sample, 0, inputs, outputs, [], pattern, note, rest=rest))
        commands.append_graph_execute(graph)
    commands.close()
    fence = client.session.queue.create_fence()
    submit(client.session.queue, commands, fence, parts)
    await_fence(fence, f"a list of {count} inferences of '{loaded.workload.name}'")
    for at, part in enumerate(parts):
        check(part, f", part {at} of {count}")
    return count


def states(client: Client, step: Step) -> int:
    """Run a stateful model over all steps of a sample and the next; the first model if there is none."""
    with_states = [
        index for index, (workload, _) in enumerate(client.session.workloads) if workload.steps > 1
    ] or [0]
    return infer(client, step._replace(workload=with_states[step.seed % len(with_states)]))


def memory(client: Client, step: Step) -> int:
    """Allocate all kinds and sizes, fill and copy by the device, check, free in any order."""
    random = Random(step.seed)
    context = client.session.context
    kinds = (context.alloc_host, context.alloc_device, context.alloc_shared)
    blocks = [random.choice(kinds)(random.randrange(1, _LARGEST)) for _ in range(random.randrange(2, 7))]
    commands = context.create_command_list()
    patterns = [random.randrange(256) for _ in blocks]
    for block, pattern in zip(blocks, patterns, strict=True):
        block.view()[:] = ~pattern & 0xFF
        commands.append_memory_fill(block, bytes([pattern]), block.size)
        commands.append_barrier()
    target = context.alloc_host(_LARGEST)
    target.view()[:] = 0
    commands.append_memory_copy(target, blocks[0], blocks[0].size)
    commands.close()
    await_fence(_submitted(client, commands), "fills and a copy")
    for block, pattern in zip([*blocks, target], [*patterns, patterns[0]], strict=True):
        size = blocks[0].size if block is target else block.size
        if not np.all(block.view()[:size] == pattern):
            raise WrongResult(f"memory of {size} bytes is not what the device filled it with")
    if np.any(target.view()[blocks[0].size :]):
        raise WrongResult(f"memory behind a copy of {blocks[0].size} bytes was written")
    random.shuffle(blocks)
    for block in blocks[:-1]:
        block.destroy()
    return len(blocks) + 1


def events(client: Client, step: Step) -> int:
    """Have two queues wait for each other by events, and both for this process."""
    context, session = client.session.context, client.session
    gate, middle = context.create_event(), context.create_event()
    first, second, third = (context.alloc_host(256) for _ in range(3))
    first.view()[:] = step.seed & 0xFF
    third.view()[:] = ~step.seed & 0xFF
    one, two = context.create_command_list(), context.create_command_list()
    one.append_wait_on_events([gate])
    one.append_memory_copy(second, first, 256, middle)
    two.append_memory_copy(third, second, 256, None, [middle])
    one.close()
    two.close()
    work = ((session.other_queue, two), (session.queue, one))
    # the device gives up long waits: nothing slow comes in between
    fences = [queue.create_fence() for queue, _ in work]
    for (queue, commands), fence in zip(work, fences, strict=True):
        queue.execute_command_lists([commands], fence)
    gate.host_signal()
    for fence in fences:
        await_fence(fence, "a queue that waits for the other")
    _await_event(middle)
    if not np.all(third.view() == step.seed & 0xFF):
        raise WrongResult("what a second queue copied after an event is not what the first one wrote")
    return 1


def cancel(client: Client, step: Step) -> int:
    """Cancel a waiting submission; those after it in the queue run."""
    loaded = load_model(client, step)
    if loaded is None:
        return 0
    context, queue = client.session.context, client.session.queue
    gate = context.create_event()
    commands = context.create_command_list()
    commands.append_wait_on_events([gate])
    commands.close()
    sample = sample_of(loaded, step)
    fed = loaded.feed(sample)
    fence, behind = queue.create_fence(), queue.create_fence()
    queue.execute_command_lists([commands], fence)
    loaded.submit_fed(queue, behind, fed)
    fence.cancel()
    try:
        await_fence(fence, "a submission that was cancelled")
    except ZeError as error:
        if error.result != ZeResult.ERROR_NOT_AVAILABLE:
            raise
    else:
        raise WrongResult("a submission that was cancelled while it waited ended well")
    await_fence(behind, "the submission behind a cancelled one")
    loaded.check(fed)
    return 1


def compile_anew(client: Client, step: Step) -> int:
    """Recompile a model, from its file or the cache, and run it."""
    client.session.drop(step.workload)
    made = client.compiling(lambda: client.session.compiled(step.workload, cached=bool(step.seed % 3)))
    if made is None:
        return 0
    made.infer(client.session.queue, sample_of(made, step))
    return made.workload.steps


def import_(client: Client, step: Step) -> int:
    """Export a model with its weights, and import it again."""
    loaded = load_model(client, step)
    if loaded is None:
        return 0
    session = client.session

    def again() -> LoadedModel:
        blob = loaded.graph.get_native_binary()
        return session.of(step.workload, import_blob(session.context, blob))

    made = client.compiling(again)
    if made is None:
        return 0
    made.infer(session.queue, sample_of(made, step))
    return made.workload.steps


def refused(client: Client, step: Step) -> int:
    """Check that invalid models are rejected, and the session goes on."""
    text = f"<net name='nothing' version='11'><{step.seed}/>".encode()
    with GraphSource.from_xml("nothing", text) as source:
        try:
            if client.compiling(lambda: client.session.context.create_graph(source)) is None:
                return 0
        except ZeError as error:
            if error.result != ZeResult.ERROR_INVALID_ARGUMENT:
                raise
            return 0
    raise WrongResult("a model that is none was compiled")


def share(client: Client, step: Step) -> int:
    """Offer an input of a model to the other clients, as memory of this process."""
    workload, samples = client.session.workloads[step.workload]
    sample = step.sample % workload.samples
    (array, *_) = samples.inputs(sample)
    memory = client.session.context.alloc_host(array.nbytes, export=True)
    memory.view()[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    client.share(step.workload, sample, memory)
    return 0


def remote(client: Client, step: Step) -> int:
    """Compute on memory shared by another process, if any; it may die meanwhile."""
    others = client.progress.rows
    row = others[(client.number + 1 + step.seed % max(1, len(others) - 1)) % len(others)]
    generation = int(row[Field.GENERATION])
    workload, sample = int(row[Field.SHARED_WORKLOAD]), int(row[Field.SHARED_SAMPLE])
    if not generation:
        return 0
    try:
        fd = os.open(f"/proc/{row[Field.PID]}/fd/{row[Field.SHARED_FD]}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return 0  # it has died
    try:
        if int(row[Field.GENERATION]) != generation:
            return 0  # it has been replaced meanwhile
        loaded = client.compiling(lambda: client.session.loaded(workload))
        if loaded is None:
            return 0
        foreign = client.session.context.import_memory(fd)
    finally:
        os.close(fd)
    memory = [foreign, *loaded.memory[1:]]
    fed = loaded.feed_into(memory, sample, given=1)
    fence = client.session.queue.create_fence()
    submit(client.session.queue, loaded.record(memory), fence, [fed])
    await_fence(fence, "an inference on memory of another process")
    check(fed, ", on memory of another process")
    return 1


def reconnect(client: Client, step: Step) -> int:
    """Close a session in order, and open a new one."""
    del step
    client.reconnect()
    return 0


def _submitted(client: Client, commands: CommandList) -> Fence:
    fence = client.session.queue.create_fence()
    client.session.queue.execute_command_lists([commands], fence)
    return fence


def _await_event(event: Event) -> None:
    if not event.host_synchronize(int(1e9)):
        raise WaitTimeout("an event whose command has ended is not signalled")


ALL: Final[dict[str, Callable[[Client, Step], int]]] = {
    "infer": infer,
    "burst": burst,
    "batch": batch,
    "states": states,
    "memory": memory,
    "events": events,
    "share": share,
    "remote": remote,
    "cancel": cancel,
    "compile": compile_anew,
    "import": import_,
    "refused": refused,
    "reconnect": reconnect,
}
"""Every operation by its name in the plan; each returns the number of checked results."""
