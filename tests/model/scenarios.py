"""Small programs, each explored completely: every order of steps, and the death of the engine at each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.model.checker import Model, Process
from tests.model.client import Client, Fence, check_all_told
from tests.model.engine import Engine, stream, watchdog
from tests.model.operations import Memory, Steps, Violation, load, wait
from tests.model.world import CANCELLED, FAILED, LOST, MINE, RESET, SUCCESS, Command, World

COPY, LONG, INFER, FAIL = Command("copy"), Command("long"), Command("infer"), Command("fail")
SIGNAL, WAIT, UPDATE = Command("signal", "event"), Command("wait", "event"), Command("update", "state")


@dataclass(frozen=True)
class Scenario:
    """What there is, and what the threads of a program do with it."""

    world: World
    threads: tuple[Callable[[Client], Steps], ...]
    deaths: int = 1
    at_end: Callable[[Memory], None] = check_all_told

    def model(self, name: str, *defects: str) -> Model:
        """The model of this program, with defects put into it."""
        world = replace(self.world, defects=frozenset(defects))
        clients = tuple(
            Process(f"thread {number}", {"start": lambda thread=thread: thread(Client(world))})
            for number, thread in enumerate(self.threads, 1)
        )
        streams = tuple(stream(work) for work in world.inferences)
        others = (*clients, *streams, watchdog()) if world.watchdog else (*clients, *streams)
        return Model(
            name=name,
            memory=world.memory(),
            processes=(*others, Engine(world).process()),
            deaths=self.deaths,
            hides=not streams,
            at_end=self.at_end,
        )


def _again(client: Client) -> Steps:
    """The same list twice, with the same fence, on new input; the output is the client's in between."""
    fence = Fence("A", "fence")
    yield from client.submit("A", ["x"], fence)
    _expect((yield from client.wait_fence(fence)), SUCCESS)
    yield from client.write("in.x", 2)
    yield from client.submit("A", ["x"], fence)
    _expect((yield from client.wait_fence(fence)), SUCCESS)


def _rearm(client: Client) -> Steps:
    """The end is learnt from an event, and the fence given to the next submission before it is signalled."""
    fence = Fence("A", "fence")
    yield from client.submit("A", ["x"], fence)
    yield from client.wait_event("event")
    yield from client.submit("A", ["y"], fence)
    _expect((yield from client.wait_fence(fence)), SUCCESS)
    yield from client.synchronize("A")


def _place(client: Client) -> Steps:
    """The place of a fence is given to a fence of another queue."""
    fence = Fence("A", "fence")
    yield from client.submit("A", ["x"], fence)
    _expect((yield from client.wait_fence(fence)), SUCCESS)
    yield from client.reset_fence(fence)
    other = Fence("B", "fence")
    yield from client.submit("B", ["y"], other)
    _expect((yield from client.wait_fence(other)), SUCCESS)


def _several(client: Client) -> Steps:
    """Two lists and a fence: the first fails."""
    fence = Fence("A", "fence")
    yield from client.submit("A", ["bad", "x"], fence)
    _expect((yield from client.wait_fence(fence)), FAILED)
    yield from client.synchronize("A")


def _failures(client: Client) -> Steps:
    """An earlier failure, told after a later one; slots are used again."""
    fence = Fence("A", "fence")
    yield from client.submit("A", ["bad"])
    yield from client.submit("A", ["bad"], fence)
    _expect((yield from client.wait_fence(fence)), FAILED)
    yield from client.submit("A", ["x"])
    yield from client.synchronize("A")


def _full_ring(client: Client) -> Steps:
    """The slot of a failed submission is used again as soon as there is room."""
    yield from client.submit("A", ["bad"])
    yield from client.submit("A", ["x"])
    yield from client.submit("A", ["x"])
    yield from client.synchronize("A")


def _cancel(client: Client) -> Steps:
    """A submission is cancelled, and its fence given to another one at once."""
    fence = Fence("A", "fence")
    yield from client.submit("A", ["x"], fence)
    yield from client.cancel(fence)
    yield from client.submit("A", ["y"], fence)
    _expect((yield from client.wait_fence(fence)), SUCCESS)
    yield from client.synchronize("A")


def _cancel_one_of_two(client: Client) -> Steps:
    """A fence is given to two submissions and cancelled: that concerns the second one."""
    fence = Fence("A", "fence")
    yield from client.submit("A", ["x"], fence)
    yield from client.submit("A", ["y"], fence)
    yield from client.cancel(fence)
    yield from client.wait_fence(fence)
    untold = yield from client.synchronize("A")
    if 1 in untold:
        raise Violation(f"A1 ended with {untold[1]}, but A2 was cancelled")


def _event(client: Client) -> Steps:
    """The host sees an event and resets it: no later engine signals it again."""
    fence = Fence("A", "fence")
    yield from client.submit("A", ["x"], fence)
    yield from client.wait_event("event")
    yield from client.reset_event("event")
    _expect((yield from client.wait_fence(fence)), SUCCESS)
    event = yield load("event")
    _expect(event.state, RESET)


def _events_of_two(client: Client) -> Steps:
    """Two queues signal one event."""
    yield from client.submit("A", ["x"])
    yield from client.submit("B", ["y"])
    yield from client.synchronize("A")
    yield from client.synchronize("B")


def _consumer(client: Client) -> Steps:
    """A queue waits for an event that another one signals."""
    yield from client.submit("B", ["y"])
    yield from client.submit("A", ["x"])
    yield from client.synchronize("B")
    yield from client.synchronize("A")


def _state(client: Client) -> Steps:
    """A list that updates a state in place, twice."""
    fence = Fence("A", "fence")
    for _ in range(2):
        yield from client.submit("A", ["x"], fence)
        _expect((yield from client.wait_fence(fence)), SUCCESS)
    low = yield load("state.low")
    _expect(low, 2)


def _state_cancelled(client: Client) -> Steps:
    """An update that is cancelled has happened or not, and what is told says which."""
    fence = Fence("A", "fence")
    yield from client.write("state.low", 5)
    yield from client.write("state.high", 5)
    yield from client.submit("A", ["x"], fence)
    yield from client.cancel(fence)
    result = yield from client.wait_fence(fence)
    low = yield load("state.low")
    _expect(low, 6 if result == SUCCESS else 5)


def _destroy(client: Client) -> Steps:
    """A queue is destroyed with work in flight; its memory is the client's from then on."""
    fence = Fence("A", "late")
    yield from client.create_fence("late")
    yield from client.submit("A", ["x"], fence)
    yield from client.destroy("A")
    yield from client.write("out.x", MINE)
    yield from client.reset_fence(fence)
    yield from client.submit("B", ["y"], Fence("B", "late"))
    yield from client.synchronize("B")
    _expect((yield load("out.x")), MINE)


def _watch(client: Client) -> Steps:
    """A second thread waits for the fence of the queue that the first one destroys."""
    yield wait("A has work", lambda memory: memory["A.tail"] >= 1)
    yield from client.wait_fence(client.fence_of_another_thread("A", "late", "x"))


def _early(client: Client) -> Steps:
    """An inference that began before its turn, which ends by an injected fault; then the same list again."""
    fence = Fence("B", "fence")
    yield from client.submit("A", ["x"])
    yield from client.submit("B", ["y"], fence)
    yield from client.wait_fence(fence)
    yield from client.write("in.y", 2)
    yield from client.submit("B", ["y"], fence)
    yield from client.wait_fence(fence)
    yield from client.synchronize("A")


def _early_destroyed(client: Client) -> Steps:
    """A queue is destroyed while its inference runs before its turn."""
    yield from client.submit("A", ["x"])
    yield from client.submit("B", ["y"])
    yield from client.destroy("B")
    yield from client.write("out.y", MINE)
    yield from client.synchronize("A")
    _expect((yield load("out.y")), MINE)


def _cancelled_twice(client: Client) -> Steps:
    """A cancelled submission stays cancelled when another one with its fence is cancelled, too."""
    fence = Fence("A", "fence")
    for work in ("x", "y"):
        yield from client.submit("A", [work], fence)
        yield from client.cancel(fence)
    yield from client.synchronize("A")


def _armed_again(client: Client) -> Steps:
    """The fence is given to the next submission while another thread still waits for this one."""
    fence = Fence("A", "fence")
    yield from client.submit("A", ["x"], fence)
    yield from client.wait_event("event")
    yield from client.submit("A", ["y"], fence)
    yield from client.synchronize("A")


def _waiter(client: Client) -> Steps:
    """Another thread that waits for the first submission."""
    yield wait("A has work", lambda memory: memory["A.tail"] >= 1)
    yield from client.wait_fence(client.fence_of_another_thread("A", "fence", "x"))


def _cancelled_wait(client: Client) -> Steps:
    """A submission that waits for an event is cancelled; what comes behind it runs."""
    fence = Fence("A", "fence")
    yield from client.submit("A", ["x"], fence)
    yield from client.submit("A", ["y"])
    yield from client.cancel(fence)
    _expect((yield from client.wait_fence(fence)), CANCELLED)
    yield from client.synchronize("A")


def _destroyed_wait(client: Client) -> Steps:
    """A queue is destroyed while it waits for an event."""
    yield from client.submit("A", ["x"])
    yield from client.submit("B", ["y"])
    yield from client.destroy("A")
    yield from client.write("out.x", MINE)
    yield from client.synchronize("B")
    _expect((yield load("out.x")), MINE)


def _early_of_two(client: Client) -> Steps:
    """The same list in two queues, one of which began it early."""
    yield from client.submit("B", ["y"])
    yield from client.submit("A", ["x", "y"])
    yield from client.synchronize("B")
    yield from client.synchronize("A")


def _everything(client: Client) -> Steps:
    """A list with commands of every kind, for which another queue waits."""
    fence = Fence("B", "fence")
    yield from client.submit("B", ["y"], fence)
    yield from client.submit("A", ["x"])
    _expect((yield from client.wait_fence(fence)), SUCCESS)
    yield from client.synchronize("A")
    low = yield load("state.low")
    _expect(low, 1)


def _one(client: Client) -> Steps:
    """One submission."""
    fence = Fence("A", "fence")
    yield from client.submit("A", ["x"], fence)
    yield from client.wait_fence(fence)


def _slices(client: Client) -> Steps:
    """A long command makes room for another queue; what comes behind it happens once."""
    fence = Fence("A", "fence")
    yield from client.submit("A", ["x"], fence)
    yield from client.submit("B", ["y"])
    _expect((yield from client.wait_fence(fence)), SUCCESS)
    yield from client.synchronize("B")


def _expect(found: object, expected: object) -> None:
    if found != expected:
        raise Violation(f"told {found} instead of {expected}")


TWO = ("A", "B")

SCENARIOS = {
    "the same fence again": Scenario(World({"x": (COPY,)}), (_again,), deaths=2),
    "armed again before it is signalled": Scenario(
        World({"x": (COPY, SIGNAL), "y": (COPY,)}), (_rearm,), deaths=2
    ),
    "a place for another queue": Scenario(
        World({"x": (COPY,), "y": (COPY,)}, queues=TWO), (_place,), deaths=2
    ),
    "a fence of two lists": Scenario(World({"x": (COPY,), "bad": (FAIL,)}), (_several,)),
    "failures and slots": Scenario(World({"x": (COPY,), "bad": (FAIL,)}), (_failures,)),
    "a full ring": Scenario(World({"x": (COPY,), "bad": (FAIL,)}), (_full_ring,)),
    "cancelled and armed again": Scenario(World({"x": (COPY, COPY), "y": (COPY,)}, looks=True), (_cancel,)),
    "one of two cancelled": Scenario(
        World({"x": (COPY, COPY), "y": (COPY,)}, looks=True), (_cancel_one_of_two,)
    ),
    "an event that the host resets": Scenario(World({"x": (COPY, SIGNAL)}), (_event,), deaths=2),
    "an event of two queues": Scenario(
        World({"x": (SIGNAL,), "y": (SIGNAL,)}, queues=TWO), (_events_of_two,), deaths=2
    ),
    "a queue that waits": Scenario(
        World({"x": (SIGNAL,), "y": (COPY, WAIT, COPY)}, queues=TWO), (_consumer,)
    ),
    "a state in place": Scenario(World({"x": (UPDATE,)}), (_state,), deaths=2),
    "a state in place, cancelled": Scenario(World({"x": (UPDATE,)}, looks=True), (_state_cancelled,)),
    "a queue that is destroyed": Scenario(
        World(
            {"x": (COPY, COPY), "y": (COPY,)},
            queues=TWO,
            fences=("late",),
            late=frozenset({"late"}),
            looks=True,
        ),
        (_destroy, _watch),
    ),
    "begun early": Scenario(
        World({"x": (INFER,), "y": (INFER,)}, queues=TWO, struck={"y": FAILED}), (_early,)
    ),
    "a dropped signal": Scenario(World({"x": (COPY,)}, struck={"x": LOST}), (_one,), deaths=2),
    "destroyed while it runs early": Scenario(
        World({"x": (INFER,), "y": (INFER,)}, queues=TWO, looks=True), (_early_destroyed,)
    ),
    "cancelled while it is decoded": Scenario(
        World({"x": (COPY,), "y": (COPY,)}, looks=True, decodes=True), (_cancelled_twice,)
    ),
    "aborted by the watchdog": Scenario(
        World({"x": (LONG, COPY)}, looks=True, slices=True, watchdog=True), (_one,)
    ),
    "a state behind a long command": Scenario(World({"x": (LONG, UPDATE)}, slices=True), (_one,), deaths=2),
    "armed again while another thread waits": Scenario(
        World({"x": (SIGNAL, FAIL), "y": (COPY,)}), (_armed_again, _waiter)
    ),
    "a wait that is cancelled": Scenario(
        World({"x": (COPY, WAIT, COPY), "y": (COPY,)}), (_cancelled_wait,), deaths=2
    ),
    "a wait that is destroyed": Scenario(
        World({"x": (WAIT, COPY), "y": (SIGNAL,)}, queues=TWO, looks=True), (_destroyed_wait,)
    ),
    "a list that begins early for one of two": Scenario(
        World({"x": (INFER,), "y": (INFER,)}, queues=TWO), (_early_of_two,)
    ),
    "commands of every kind": Scenario(
        World({"x": (LONG, UPDATE, SIGNAL, COPY), "y": (WAIT, COPY)}, queues=TWO, slices=True),
        (_everything,),
        deaths=2,
    ),
    "slices": Scenario(World({"x": (LONG, SIGNAL), "y": (COPY,)}, queues=TWO, slices=True), (_slices,)),
}
