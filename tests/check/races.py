"""Wrong programs: what nothing orders, in a list, between queues, processes, and with the host."""

from __future__ import annotations

import os

from softnpu.driver import Driver
from tests.check.rig import (
    BYTES,
    HALF,
    Append,
    Rig,
    barrier,
    copy,
    fill,
    held,
    in_child,
    infer,
    let_go,
    program,
)
from tests.conformance.models import SIZE

# ------------------------------------------------------------ races between queues


@program("race")
def two_fills(rig: Rig, right: bool) -> None:
    memory = rig.memory()
    first = rig.submit(rig.one, fill(memory))
    if right:
        first.host_synchronize()
    rig.submit(rig.two, fill(memory)).host_synchronize()


@program("race")
def fill_and_copy(rig: Rig, right: bool) -> None:
    memory, other = rig.memory(), rig.memory()
    event = rig.event()
    rig.submit(rig.one, fill(memory, signal_event=event))
    rig.submit(rig.two, copy(other, memory, wait_events=[event] if right else [])).host_synchronize()


@program("race")
def one_byte_in_common(rig: Rig, right: bool) -> None:
    memory = rig.memory()
    rig.submit(rig.one, fill(memory, HALF + (0 if right else 1)))
    rig.submit(rig.two, fill(memory, HALF, HALF)).host_synchronize()


@program("race")
def wrong_event(rig: Rig, right: bool) -> None:
    memory, other = rig.memory(), rig.memory()
    early, late = rig.event(), rig.event()
    rig.submit(rig.one, fill(other, signal_event=early), fill(memory, signal_event=late))
    awaited = late if right else early
    rig.submit(rig.two, copy(other, memory, wait_events=[awaited])).host_synchronize()


@program("race")
def missing_link(rig: Rig, right: bool) -> None:
    memory, other, third = rig.memory(), rig.memory(), rig.memory()
    first, second = rig.event(), rig.event()
    rig.submit(rig.one, fill(memory, signal_event=first))
    rig.submit(rig.two, fill(other, signal_event=second, wait_events=[first] if right else []))
    rig.submit(rig.three, copy(third, memory, wait_events=[second])).host_synchronize()


@program("race")
def waited_for_another_queue(rig: Rig, right: bool) -> None:
    memory, other = rig.memory(), rig.memory()
    first = rig.submit(rig.one, fill(memory))
    second = rig.submit(rig.two, fill(other))
    (first if right else second).host_synchronize()
    rig.submit(rig.three, fill(memory)).host_synchronize()


@program("race")
def waited_for_the_first_list(rig: Rig, right: bool) -> None:
    memory, other = rig.memory(), rig.memory()
    first = rig.submit(rig.one, fill(other))
    second = rig.submit(rig.one, fill(memory))
    (second if right else first).host_synchronize()
    rig.submit(rig.two, fill(memory)).host_synchronize()


@program("race")
def timed_out_wait(rig: Rig, right: bool) -> None:
    memory, event = rig.memory(), rig.event()
    first = rig.submit(rig.one, fill(memory, wait_events=[event]))
    if right:
        event.host_signal()
    first.host_synchronize(10**10 if right else 1)
    second = rig.submit(rig.two, fill(memory))
    event.host_signal()
    second.host_synchronize()


@program("race")
def columns(rig: Rig, right: bool) -> None:
    from softnpu.driver.region import CopyRegion

    target, source = rig.memory(), rig.memory()

    def column(start: int) -> Append:
        region = CopyRegion(start, 0, 0, 32, 16)
        return lambda commands: commands.append_memory_copy_region(
            target, region, 128, source, CopyRegion(0, 0, 0, 32, 16), 128
        )

    rig.submit(rig.one, column(0))
    rig.submit(rig.two, column(32 if right else 16)).host_synchronize()


@program("race")
def one_row_for_all(rig: Rig, right: bool) -> None:
    """Each row of the target gets the same bytes."""
    from softnpu.driver.region import CopyRegion

    target, source = rig.memory(), rig.memory()
    row = CopyRegion(0, 0, 0, 32, 16)
    rig.submit(rig.one, lambda commands: commands.append_memory_copy_region(target, row, 128, source, row, 0))
    rig.submit(rig.two, fill(source, 32, 32 if right else 31)).host_synchronize()


@program("race")
def output_of_an_inference(rig: Rig, right: bool) -> None:
    graph, event = rig.graph(), rig.event()
    left, other, output, kept = (rig.memory(size=SIZE) for _ in range(4))
    rig.submit(rig.one, infer(graph, left, other, output, signal_event=event))
    waits = [event] if right else []
    rig.submit(rig.two, copy(kept, output, SIZE, wait_events=waits)).host_synchronize()


@program("race")
def input_of_an_inference(rig: Rig, right: bool) -> None:
    graph = rig.graph()
    left, other, output = (rig.memory(size=SIZE) for _ in range(3))
    first = rig.submit(rig.one, infer(graph, left, other, output))
    if right:
        first.host_synchronize()
    rig.submit(rig.two, fill(left, SIZE)).host_synchronize()


@program("race")
def argument_of_a_mutable_list(rig: Rig, right: bool) -> None:
    """The second run of the list uses other memory, which another queue fills."""
    from softnpu.driver.command_list_mutable import CommandListMutable, Mutation, MutationKind

    graph = rig.graph()
    left, other, output, changed = (rig.memory(size=SIZE) for _ in range(4))
    commands = rig.context.create_command_list(mutable=True)
    assert isinstance(commands, CommandListMutable)
    number = commands.get_next_command_id()
    infer(graph, left, other, output)(commands)
    commands.close()
    rig.one.execute_command_lists([commands])
    rig.one.synchronize()
    commands.update_mutable_commands([Mutation(MutationKind.GRAPH_ARGUMENT, number, 0, changed)])
    rig.one.execute_command_lists([commands])
    rig.submit(rig.two, fill(left if right else changed, SIZE)).host_synchronize()


@program("race")
def timestamp(rig: Rig, right: bool) -> None:
    memory, other = rig.memory(), rig.memory()
    rig.submit(rig.one, lambda commands: commands.append_write_global_timestamp(memory))
    at = 8 if right else 0
    rig.submit(rig.two, copy(other, memory, 64, at=at)).host_synchronize()


@program("race")
def event_was_reset(rig: Rig, right: bool) -> None:
    memory, event = rig.memory(), rig.event()
    event.host_signal()
    if right:
        event.host_reset()
    rig.submit(rig.one, fill(memory, signal_event=event))
    rig.submit(rig.two, fill(memory, wait_events=[event])).host_synchronize()


@program("race")
def immediate_list(rig: Rig, right: bool) -> None:
    memory = rig.memory()
    commands = rig.context.create_command_list_immediate()
    commands.append_memory_fill(memory, b"\1", BYTES)
    if right:
        commands.host_synchronize()
    rig.submit(rig.two, fill(memory)).host_synchronize()
    commands.host_synchronize()


# ------------------------------------------------------------ order within a list


@program("list-order")
def fill_then_copy(rig: Rig, right: bool) -> None:
    memory, other = rig.memory(), rig.memory()
    between = [barrier] if right else []
    rig.submit(rig.one, fill(memory), *between, copy(other, memory)).host_synchronize()


@program("list-order")
def copies_in_a_chain(rig: Rig, right: bool) -> None:
    memory, other, third, event = rig.memory(), rig.memory(), rig.memory(), rig.event()
    first = copy(other, memory, signal_event=event)
    second = copy(third, other, wait_events=[event] if right else [])
    rig.submit(rig.one, first, second).host_synchronize()


@program("list-order")
def write_after_read(rig: Rig, right: bool) -> None:
    memory, other = rig.memory(), rig.memory()
    between = [barrier] if right else []
    rig.submit(rig.one, copy(other, memory), *between, fill(memory)).host_synchronize()


@program("list-order")
def fills_that_overlap(rig: Rig, right: bool) -> None:
    memory = rig.memory()
    start = HALF if right else HALF - 4
    rig.submit(rig.one, fill(memory, HALF), fill(memory, HALF, start)).host_synchronize()


@program("list-order")
def fill_then_infer(rig: Rig, right: bool) -> None:
    graph = rig.graph()
    left, other, output = (rig.memory(size=SIZE) for _ in range(3))
    between = [barrier] if right else []
    rig.submit(rig.one, fill(left, SIZE), *between, infer(graph, left, other, output)).host_synchronize()


@program("list-order")
def infer_then_copy(rig: Rig, right: bool) -> None:
    graph = rig.graph()
    left, other, output, kept = (rig.memory(size=SIZE) for _ in range(4))
    between = [barrier] if right else []
    appends = (infer(graph, left, other, output), *between, copy(kept, output, SIZE))
    rig.submit(rig.one, *appends).host_synchronize()


# ------------------------------------------------------------ the host, in flight


@program("host-access-in-flight")
def known_by_another_queue(rig: Rig, right: bool) -> None:
    """The host waits for a queue that has waited for the other one; if wrong, for one that has not."""
    memory, other = rig.memory(), rig.memory()
    event, gate = rig.event(), rig.event()
    rig.submit(rig.one, fill(memory, signal_event=event, wait_events=[] if right else [gate]))
    second = rig.submit(rig.two, fill(other, wait_events=[event] if right else []))
    second.host_synchronize()
    _ = int(memory.view()[0])
    gate.host_signal()


@program("host-access-in-flight")
def read_output(rig: Rig, right: bool) -> None:
    memory, other = rig.memory(), rig.memory()
    fence, event = held(rig, copy(other, memory))
    if right:
        let_go(fence, event)
    _ = int(other.view()[5])
    let_go(fence, event)


@program("host-access-in-flight")
def write_input(rig: Rig, right: bool) -> None:
    memory, other = rig.memory(), rig.memory()
    fence, event = held(rig, copy(other, memory))
    if right:
        _ = int(memory.view()[5])  # reading what the device reads
    else:
        memory.view()[5] = 3
    let_go(fence, event)


@program("host-access-in-flight")
def write_output(rig: Rig, right: bool) -> None:
    memory = rig.memory()
    fence, event = held(rig, fill(memory, HALF))
    memory.view()[HALF if right else 0] = 3
    let_go(fence, event)


@program("host-access-in-flight")
def query_that_said_no(rig: Rig, right: bool) -> None:
    memory = rig.memory()
    fence, event = held(rig, fill(memory))
    if right:
        event.host_signal()
        fence.host_synchronize()
    assert fence.query_status() is right
    _ = int(memory.view()[9])
    let_go(fence, event)


@program("host-access-in-flight")
def input_of_the_next_inference(rig: Rig, right: bool) -> None:
    graph = rig.graph()
    left, other, output, free = (rig.memory(size=SIZE) for _ in range(4))
    fence, event = held(rig, infer(graph, left, other, output))
    (free if right else left).view()[:] = 9
    let_go(fence, event)


@program("host-access-in-flight")
def result_before_its_event(rig: Rig, right: bool) -> None:
    memory, done = rig.memory(), rig.event()
    fence, event = held(rig, fill(memory, signal_event=done))
    if right:
        event.host_signal()
        done.host_synchronize()
    _ = int(memory.view()[0])
    let_go(fence, event)


# ------------------------------------------------------------ processes


@program("race")
def two_processes(rig: Rig, right: bool) -> None:
    """The child tells the parent that it has submitted its work; if right, that it has ended."""
    memory = rig.context.alloc_host(BYTES, export=True)
    memory.view()[:] = 1
    exported = rig.context.export_memory(memory)
    told, tell = os.pipe()
    allowed, allow = os.pipe()

    def child() -> None:
        with Driver.open() as driver:
            context = driver.devices[0].create_context()
            same = context.import_memory(exported)
            queue = context.create_command_queue()
            commands = context.create_command_list()
            commands.append_memory_fill(same, b"\2", BYTES)
            commands.close()
            queue.execute_command_lists([commands])
            if right:
                queue.synchronize()
            os.write(tell, b"x")
            os.read(allowed, 1)
            queue.synchronize()

    pid = in_child(child)
    os.read(told, 1)
    fence = rig.submit(rig.one, fill(memory))
    os.write(allow, b"x")
    fence.host_synchronize()
    os.waitpid(pid, 0)
    for end in (told, tell, allowed, allow, exported):
        os.close(end)
