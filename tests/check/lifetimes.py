"""Wrong programs: unwritten bytes, wrong lifetimes."""

from __future__ import annotations

from tests.check.rig import BYTES, HALF, Rig, barrier, copy, fill, held, infer, let_go, program
from tests.conformance.models import SIZE

# ------------------------------------------------------------ bytes that nobody wrote


@program("uninitialised-read")
def fresh_memory(rig: Rig, right: bool) -> None:
    source, target = rig.memory(None), rig.memory()
    if right:
        source.view()[:] = 0
    rig.submit(rig.one, copy(target, source)).host_synchronize()


@program("uninitialised-read")
def half_written(rig: Rig, right: bool) -> None:
    source, target = rig.memory(None), rig.memory()
    source.view()[:HALF] = 1
    rig.submit(rig.one, copy(target, source, HALF if right else HALF + 64)).host_synchronize()


@program("uninitialised-read")
def input_not_set(rig: Rig, right: bool) -> None:
    graph = rig.graph()
    left, output = rig.memory(size=SIZE), rig.memory(size=SIZE)
    other = rig.memory(1 if right else None, SIZE)
    rig.submit(rig.one, infer(graph, left, other, output)).host_synchronize()


@program("uninitialised-read")
def list_that_never_ran(rig: Rig, right: bool) -> None:
    source, target = rig.memory(None), rig.memory()
    prepare = rig.list(fill(source))
    if right:
        rig.one.execute_command_lists([prepare])
    rig.submit(rig.one, copy(target, source)).host_synchronize()


@program("uninitialised-read")
def written_too_late(rig: Rig, right: bool) -> None:
    source, target = rig.memory(None), rig.memory()
    order = [fill(source), barrier, copy(target, source)]
    rig.submit(rig.one, *(order if right else order[::-1])).host_synchronize()


@program("uninitialised-read")
def written_by_another_queue(rig: Rig, right: bool) -> None:
    source, target, event = rig.memory(None), rig.memory(), rig.event()
    fence = rig.submit(rig.one, copy(target, source, wait_events=[event]))
    rig.submit(rig.two, fill(source, BYTES if right else HALF, signal_event=event))
    fence.host_synchronize()


# ------------------------------------------------------------ lifetimes


@program("freed-in-flight")
def free_input(rig: Rig, right: bool) -> None:
    memory, other = rig.memory(), rig.memory()
    fence, event = held(rig, copy(other, memory))
    if right:
        let_go(fence, event)
    memory.destroy()
    let_go(fence, event)


@program("freed-in-flight")
def free_by_address(rig: Rig, right: bool) -> None:
    memory = rig.memory()
    fence, event = held(rig, fill(memory))
    if right:
        let_go(fence, event)
    rig.context.free(memory.address)
    let_go(fence, event)


@program("use-after-free")
def list_with_freed_memory(rig: Rig, right: bool) -> None:
    memory, other = rig.memory(), rig.memory()
    commands = rig.list(copy(other, memory))
    if not right:
        memory.destroy()
    rig.one.execute_command_lists([commands])
    rig.one.synchronize()


@program("use-after-free")
def read_freed_memory(rig: Rig, right: bool) -> None:
    memory = rig.memory()
    view = memory.view()
    if right:
        _ = int(view[77])
    memory.destroy()
    if not right:
        _ = int(view[77])


@program("use-after-free")
def write_freed_memory(rig: Rig, right: bool) -> None:
    memory = rig.memory()
    view = memory.view()
    if right:
        view[77] = 1
    memory.destroy()
    if not right:
        view[77] = 1


@program("destroyed-in-flight")
def destroy_list(rig: Rig, right: bool) -> None:
    memory, event, fence = rig.memory(), rig.event(), rig.one.create_fence()
    commands = rig.list(fill(memory, wait_events=[event]))
    rig.one.execute_command_lists([commands], fence)
    if right:
        let_go(fence, event)
    commands.destroy()
    let_go(fence, event)


@program("destroyed-in-flight")
def destroy_fence(rig: Rig, right: bool) -> None:
    fence, event = held(rig, fill(rig.memory()))
    if right:
        let_go(fence, event)
    fence.destroy()
    event.host_signal()
    rig.one.synchronize()


@program("destroyed-in-flight")
def destroy_event(rig: Rig, right: bool) -> None:
    memory, done = rig.memory(), rig.event()
    fence, event = held(rig, fill(memory, signal_event=done))
    if right:
        let_go(fence, event)
    done.destroy()
    let_go(fence, event)


@program("destroyed-in-flight")
def destroy_pool(rig: Rig, right: bool) -> None:
    memory = rig.memory()
    pool = rig.context.create_event_pool(1)
    fence, event = held(rig, fill(memory, signal_event=pool.create_event(0)))
    if right:
        let_go(fence, event)
    pool.destroy()
    let_go(fence, event)


@program("destroyed-in-flight")
def destroy_graph(rig: Rig, right: bool) -> None:
    graph = rig.graph()
    left, other, output = (rig.memory(size=SIZE) for _ in range(3))
    fence, event = held(rig, infer(graph, left, other, output))
    if right:
        let_go(fence, event)
    graph.destroy()
    let_go(fence, event)


@program("destroyed-in-flight")
def destroy_queue(rig: Rig, right: bool) -> None:
    fence, event = held(rig, fill(rig.memory()))
    if right:
        let_go(fence, event)
    rig.one.destroy()
    event.host_signal()


@program("destroyed-in-flight")
def destroy_context(rig: Rig, right: bool) -> None:
    fence, event = held(rig, fill(rig.memory()))
    if right:
        let_go(fence, event)
    rig.context.destroy()


@program("reset-in-flight")
def reset_list(rig: Rig, right: bool) -> None:
    memory, event, fence = rig.memory(), rig.event(), rig.one.create_fence()
    commands = rig.list(fill(memory, wait_events=[event]))
    rig.one.execute_command_lists([commands], fence)
    if right:
        let_go(fence, event)
    commands.reset()
    let_go(fence, event)


@program("use-after-free")
def memory_of_a_destroyed_context(rig: Rig, right: bool) -> None:
    context = rig.context.device.create_context()
    view = context.alloc_host(BYTES).view()
    view[:] = 1
    if right:
        _ = int(view[77])
    context.destroy()
    if not right:
        _ = int(view[77])


# ------------------------------------------------------------ outputs that no command has written


@program("unwritten-output")
def list_that_was_not_executed(rig: Rig, right: bool) -> None:
    memory = rig.memory(None)
    commands = rig.list(fill(memory))
    if right:
        rig.one.execute_command_lists([commands])
        rig.one.synchronize()
    _ = int(memory.view()[3])


@program("unwritten-output")
def result_of_no_inference(rig: Rig, right: bool) -> None:
    graph = rig.graph()
    left, other = rig.memory(size=SIZE), rig.memory(size=SIZE)
    output = rig.memory(None, SIZE)
    commands = rig.list(infer(graph, left, other, output))
    if right:
        rig.one.execute_command_lists([commands])
        rig.one.synchronize()
    _ = output.view().sum()
