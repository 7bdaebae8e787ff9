"""Wrong programs: waits without a signal, or for an old one; waits for each other."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import posix_ipc

from softnpu.driver import CommandList, Device, Driver, Event, ExternalSemaphore, Fence, ZeError
from softnpu.driver.waiting import FOREVER
from tests.check.rig import (
    BYTES,
    HALF,
    MOMENT_NS,
    Append,
    Rig,
    barrier,
    copy,
    fill,
    held,
    in_child,
    let_go,
    program,
)

_names = itertools.count()


def wait_for(event: Event) -> Append:
    """Append a wait."""
    return lambda commands: commands.append_wait_on_events([event])


def reset(event: Event) -> Append:
    """Append a reset."""
    return lambda commands: commands.append_event_reset(event)


# ------------------------------------------------------------ nobody signals


@program("never-signalled")
def nobody_signals(rig: Rig, right: bool) -> None:
    fence, event = held(rig, fill(rig.memory()))
    if right:
        event.host_signal()
    fence.host_synchronize(10**10 if right else MOMENT_NS)
    rig.context.destroy()


# ------------------------------------------------------------ waits for each other


def wait_a_moment(rig: Rig, right: bool, *fences: Fence) -> None:
    """Wait; if wrong, give up soon, and end the program with its context."""
    for fence in fences:
        fence.host_synchronize(10**10 if right else MOMENT_NS)
    rig.context.destroy()


@program("deadlock")
def each_waits_for_the_other(rig: Rig, right: bool) -> None:
    one, two = rig.event(), rig.event()
    memory, other = rig.memory(), rig.memory()
    first = rig.submit(rig.one, fill(memory, wait_events=[two], signal_event=one))
    second = rig.submit(rig.two, fill(other, wait_events=[] if right else [one], signal_event=two))
    wait_a_moment(rig, right, first, second)


@program("deadlock")
def behind_a_refused_submission(rig: Rig, right: bool) -> None:
    """The device has refused the submission before: that one is over."""
    memory, event, size = rig.memory(), rig.event(), BYTES + (0 if right else 1)
    with suppress(ZeError):
        rig.submit(rig.one, copy(rig.memory(), memory, size)).host_synchronize()
    waits = [] if right else [event]
    wait_a_moment(rig, right, rig.submit(rig.one, fill(memory, wait_events=waits, signal_event=event)))


@program("deadlock")
def three_in_a_ring(rig: Rig, right: bool) -> None:
    events = [rig.event() for _ in range(3)]
    fences = []
    for index, queue in enumerate(rig.queues):
        before = [] if right and index == 0 else [events[index - 1]]
        fences.append(rig.submit(queue, fill(rig.memory(), wait_events=before, signal_event=events[index])))
    wait_a_moment(rig, right, *fences)


@program("deadlock")
def signals_behind_its_own_wait(rig: Rig, right: bool) -> None:
    event, memory = rig.event(), rig.memory()

    def signal(commands: CommandList) -> None:
        commands.append_signal_event(event)

    order = [wait_for(event), fill(memory), signal]
    wait_a_moment(rig, right, rig.submit(rig.one, *(order[::-1] if right else order)))


@program("deadlock")
def signaller_in_the_next_list(rig: Rig, right: bool) -> None:
    event, memory, other = rig.event(), rig.memory(), rig.memory()
    first = rig.submit(rig.one, fill(memory, wait_events=[event]))
    second = rig.submit(rig.two if right else rig.one, fill(other, signal_event=event))
    wait_a_moment(rig, right, first, second)


# ------------------------------------------------------------ lost wake-ups


@program("lost-wake-up")
def reset_before_the_wait(rig: Rig, right: bool) -> None:
    event, memory = rig.event(), rig.memory()
    event.host_signal()
    fence = rig.submit(rig.one, fill(memory, wait_events=[event]))
    if right:
        fence.host_synchronize()
    event.host_reset()
    event.host_signal()
    fence.host_synchronize()


@program("lost-wake-up")
def reset_by_another_queue(rig: Rig, right: bool) -> None:
    event, memory = rig.event(), rig.memory()
    event.host_signal()
    first = rig.submit(rig.one, fill(memory, wait_events=[event]))
    if right:
        first.host_synchronize()
    rig.submit(rig.two, reset(event)).host_synchronize()
    event.host_signal()
    first.host_synchronize()


@program("lost-wake-up")
def waited_for_the_signaller(rig: Rig, right: bool) -> None:
    """The event is used again when its signaller has ended; if right, when its waiter has."""
    event, memory, other = rig.event(), rig.memory(), rig.memory()
    first = rig.submit(rig.one, fill(memory, signal_event=event))
    second = rig.submit(rig.two, copy(other, memory, wait_events=[event]))
    (second if right else first).host_synchronize()
    event.host_reset()
    event.host_signal()
    second.host_synchronize()


# ------------------------------------------------------------ fences


@program("fence-waited-twice")
def fence_of_the_list_before(rig: Rig, right: bool) -> None:
    memory, other, gate = rig.memory(), rig.memory(), rig.event()
    fence = rig.submit(rig.one, fill(other))
    fence.host_synchronize()
    rig.one.execute_command_lists([rig.list(wait_for(gate), fill(memory))])
    if right:
        gate.host_signal()
        rig.one.synchronize()
    fence.host_synchronize()
    _ = int(memory.view()[4])
    gate.host_signal()
    rig.one.synchronize()


@program("fence-waited-twice")
def freed_after_an_old_fence(rig: Rig, right: bool) -> None:
    memory, other, gate = rig.memory(), rig.memory(), rig.event()
    fence = rig.submit(rig.one, fill(other))
    fence.host_synchronize()
    later = rig.submit(rig.one, wait_for(gate), fill(memory))
    if right:
        let_go(later, gate)
    assert fence.query_status()
    memory.destroy()
    let_go(later, gate)


# ------------------------------------------------------------ processes


@contextmanager
def semaphore() -> Iterator[str]:
    """Yield the name of a new semaphore."""
    name = f"/softnpu-check-{os.getpid()}-{next(_names)}"
    posix_ipc.Semaphore(name, posix_ipc.O_CREX, mode=0o600).close()
    yield name
    posix_ipc.unlink_semaphore(name)


def opened(device: Device, *names: str) -> list[ExternalSemaphore]:
    """Return these semaphores."""
    return [device.import_external_semaphore(name) for name in names]


def with_child(main: Callable[[], None], child: Callable[[], None]) -> None:
    """Run both, the second one in a child."""
    pid = in_child(child)
    main()
    assert os.waitpid(pid, 0)[1] == 0


@program("deadlock")
def programs_that_wait_for_each_other(rig: Rig, right: bool) -> None:
    """In the second round one of them waits first as well."""
    with semaphore() as ping_name, semaphore() as pong_name:

        def child() -> None:
            with Driver.open() as driver:
                ping, pong = opened(driver.devices[0], ping_name, pong_name)
                for timeout_ns in (FOREVER, FOREVER if right else MOMENT_NS):
                    with ping.turn(done=pong, timeout_ns=timeout_ns):
                        pass

        def main() -> None:
            ping, pong = opened(rig.context.device, ping_name, pong_name)
            ping.signal()
            assert pong.wait()
            assert pong.take()
            if right:
                ping.signal()
            assert pong.wait(FOREVER if right else MOMENT_NS) is right

        with_child(main, child)


@program("race")
def semaphore_before_the_end(rig: Rig, right: bool) -> None:
    """The other program gets its turn when the work is submitted; if right, when it has ended."""
    with semaphore() as turn_name, semaphore() as done_name:
        name = f"/softnpu-check-{os.getpid()}-{next(_names)}"
        memory = rig.context.publish_shared_memory(name, BYTES)
        memory.view()[:] = 1

        def child() -> None:
            with Driver.open() as driver:
                context = driver.devices[0].create_context()
                same, queue = context.open_shared_memory(name), context.create_command_queue()
                turn, done = opened(driver.devices[0], turn_name, done_name)
                with turn.turn(done=done):
                    commands = context.create_command_list()
                    commands.append_memory_fill(same, b"\2", HALF)
                    commands.close()
                    queue.execute_command_lists([commands])
                    queue.synchronize()

        def main() -> None:
            turn, done = opened(rig.context.device, turn_name, done_name)
            fence = rig.submit(rig.one, fill(memory))
            if right:
                fence.host_synchronize()
            turn.signal()
            assert done.wait()
            fence.host_synchronize()

        with_child(main, child)
        memory.destroy()


@program("foreign-handle")
def fence_of_the_parent(rig: Rig, right: bool) -> None:
    fence = rig.submit(rig.one, fill(rig.memory()), barrier)

    def child() -> None:
        with suppress(ZeError):
            if right:
                Driver.open().destroy()
            else:
                fence.host_synchronize()

    def main() -> None:
        fence.host_synchronize()

    with_child(main, child)
