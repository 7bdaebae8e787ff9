"""Small programs, each explored completely: every order of steps, and the death of the engine at each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from tests.model.checker import Model, Process
from tests.model.client import Client, check_all_reported
from tests.model.engine import Engine, stream, watchdog
from tests.model.operations import Steps, Violation, load, wait
from tests.model.world import FAILED, LOST, RESET, SUCCESS, Command, World

COPY, LONG, INFER, FAIL = Command("copy"), Command("long"), Command("infer"), Command("fail")
SIGNAL, WAIT, UPDATE = Command("signal", "event"), Command("wait", "event"), Command("update", "state")
TWO = ("A", "B")


@dataclass(frozen=True)
class Scenario:
    """The world, and the calls of each thread of a program, separated by `;` (see `_call`)."""

    world: World
    threads: tuple[str, ...]
    deaths: int = 1

    def model(self, name: str, *defects: str) -> Model:
        """Return the model of this program, with these defects."""
        world = replace(self.world, defects=frozenset(defects))
        clients = tuple(
            Process(f"thread {number}", {"start": lambda calls=calls: _thread(Client(world), calls)})
            for number, calls in enumerate(self.threads, 1)
        )
        streams = tuple(stream(work) for work in world.inferences)
        others = (*clients, *streams, watchdog()) if world.watchdog else (*clients, *streams)
        return Model(
            name=name,
            memory=world.memory(),
            processes=(*others, Engine(world).process()),
            deaths=self.deaths,
            hides=not streams,
            at_end=partial(check_all_reported, injections=len(world.injections)),
        )


def _thread(client: Client, calls: str) -> Steps:
    for call in calls.split(";"):
        yield from _call(client, *call.split())


def _call(client: Client, verb: str, *arguments: str) -> Steps:
    """Make one call. `A@place` is the fence of queue A at this place."""
    first, *rest = arguments
    queue, _, place = first.partition("@")
    fence = client.fence(queue, place)
    match verb:
        case "submit":
            yield from client.submit(queue, rest, fence if place else None)
        case "wait":  # for a fence, which must report this result, if one is given
            result = yield from client.wait_fence(fence)
            if rest:
                _expect(result, rest[0])
        case "synchronize":
            unreported = yield from client.synchronize(queue)
            if rest and 1 in unreported:
                raise Violation(f"A1 ended with {unreported[1]}, but A2 was cancelled")
        case "cancel":
            yield from client.cancel(fence)
        case "release":
            yield from client.reset_fence(fence)
        case "destroy":
            yield from client.destroy(queue)
        case "allocate":
            yield from client.create_fence(first)
        case "write":
            yield from client.write(first, int(rest[0]) if rest[0].isdigit() else rest[0])
        case "holds":
            value = yield load(first)
            _expect(str(value.state if first == "event" else value), rest[0])
        case "wait_event":
            yield from client.wait_event(first)
        case "reset_event":
            yield from client.reset_event(first)
        case "beside":  # another thread waits for the fence of the very first submission
            yield wait("A has work", lambda memory: memory["A.tail"] >= 1)
            yield from client.wait_fence(client.fence_of_another_thread("A", first, "x"))
        case "updated":  # a cancelled update has happened or not, and the result says which
            result = yield from client.wait_fence(fence)
            low = yield load("state.low")
            _expect(low, 6 if result == SUCCESS else 5)


def _expect(actual: object, expected: object) -> None:
    if actual != expected:
        raise Violation(f"told {actual} instead of {expected}")


_BAD = World({"x": (COPY,), "bad": (FAIL,)})
_TWO_COPIES = World({"x": (COPY, COPY), "y": (COPY,)}, looks=True)
_INFERENCES = World({"x": (INFER,), "y": (INFER,)}, queues=TWO)
_ONE = "submit A@fence x; wait A@fence"

SCENARIOS = {
    "the same fence again": Scenario(  # on new input
        World({"x": (COPY,)}),
        ("submit A@fence x; wait A@fence SUCCESS; write in.x 2;submit A@fence x; wait A@fence SUCCESS",),
        deaths=2,
    ),
    "armed again before it is signalled": Scenario(  # the end is known from an event
        World({"x": (COPY, SIGNAL), "y": (COPY,)}),
        ("submit A@fence x; wait_event event; submit A@fence y; wait A@fence SUCCESS; synchronize A",),
        deaths=2,
    ),
    "a place for another queue": Scenario(
        World({"x": (COPY,), "y": (COPY,)}, queues=TWO),
        ("submit A@fence x; wait A@fence SUCCESS; release A@fence;submit B@fence y; wait B@fence SUCCESS",),
        deaths=2,
    ),
    "a fence of two lists": Scenario(_BAD, ("submit A@fence bad x; wait A@fence FAILED; synchronize A",)),
    "failures and slots": Scenario(  # an earlier failure is reported after a later one
        _BAD, ("submit A bad; submit A@fence bad; wait A@fence FAILED; submit A x; synchronize A",)
    ),
    "a full ring": Scenario(_BAD, ("submit A bad; submit A x; submit A x; synchronize A",)),
    "cancelled and armed again": Scenario(
        _TWO_COPIES,
        ("submit A@fence x; cancel A@fence; submit A@fence y; wait A@fence SUCCESS; synchronize A",),
    ),
    "one of two cancelled": Scenario(
        _TWO_COPIES,
        ("submit A@fence x; submit A@fence y; cancel A@fence; wait A@fence; synchronize A without_A1",),
    ),
    "an event that the host resets": Scenario(
        World({"x": (COPY, SIGNAL)}),
        (f"submit A@fence x; wait_event event; reset_event event;wait A@fence SUCCESS; holds event {RESET}",),
        deaths=2,
    ),
    "an event of two queues": Scenario(
        World({"x": (SIGNAL,), "y": (SIGNAL,)}, queues=TWO),
        ("submit A x; submit B y; synchronize A; synchronize B",),
        deaths=2,
    ),
    "a queue that waits": Scenario(
        World({"x": (SIGNAL,), "y": (COPY, WAIT, COPY)}, queues=TWO),
        ("submit B y; submit A x; synchronize B; synchronize A",),
    ),
    "a state in place": Scenario(
        World({"x": (UPDATE,)}),
        ("submit A@fence x; wait A@fence SUCCESS; submit A@fence x; wait A@fence SUCCESS;holds state.low 2",),
        deaths=2,
    ),
    "a state in place, cancelled": Scenario(
        World({"x": (UPDATE,)}, looks=True),
        ("write state.low 5; write state.high 5; submit A@fence x; cancel A@fence; updated A@fence",),
    ),
    "a queue that is destroyed": Scenario(  # its memory is the client's from then on
        replace(_TWO_COPIES, queues=TWO, fences=("late",), late=frozenset({"late"})),
        (
            "allocate late; submit A@late x; destroy A; write out.x mine; release A@late;"
            "submit B@late y; synchronize B; holds out.x mine",
            "beside late",
        ),
    ),
    "begun early": Scenario(  # it ends by an injected fault; then the same list again
        replace(_INFERENCES, injections={"y": FAILED}),
        (
            "submit A x; submit B@fence y; wait B@fence; write in.y 2;"
            "submit B@fence y; wait B@fence; synchronize A",
        ),
    ),
    "a dropped signal": Scenario(World({"x": (COPY,)}, injections={"x": LOST}), (_ONE,), deaths=2),
    "destroyed while it runs early": Scenario(
        replace(_INFERENCES, looks=True),
        ("submit A x; submit B y; destroy B; write out.y mine; synchronize A; holds out.y mine",),
    ),
    "cancelled while it is decoded": Scenario(
        World({"x": (COPY,), "y": (COPY,)}, looks=True, decodes=True),
        ("submit A@fence x; cancel A@fence; submit A@fence y; cancel A@fence; synchronize A",),
    ),
    "aborted by the watchdog": Scenario(
        World({"x": (LONG, COPY)}, looks=True, slices=True, watchdog=True), (_ONE,)
    ),
    "a state behind a long command": Scenario(World({"x": (LONG, UPDATE)}, slices=True), (_ONE,), deaths=2),
    "armed again while another thread waits": Scenario(
        World({"x": (SIGNAL, FAIL), "y": (COPY,)}),
        ("submit A@fence x; wait_event event; submit A@fence y; synchronize A", "beside fence"),
    ),
    "a wait that is cancelled": Scenario(  # its successors run
        World({"x": (COPY, WAIT, COPY), "y": (COPY,)}),
        ("submit A@fence x; submit A y; cancel A@fence; wait A@fence CANCELLED; synchronize A",),
        deaths=2,
    ),
    "a wait that is destroyed": Scenario(
        World({"x": (WAIT, COPY), "y": (SIGNAL,)}, queues=TWO, looks=True),
        ("submit A x; submit B y; destroy A; write out.x mine; synchronize B; holds out.x mine",),
    ),
    "a list that begins early for one of two": Scenario(
        _INFERENCES, ("submit B y; submit A x y; synchronize B; synchronize A",)
    ),
    "commands of every kind": Scenario(
        World({"x": (LONG, UPDATE, SIGNAL, COPY), "y": (WAIT, COPY)}, queues=TWO, slices=True),
        ("submit B@fence y; submit A x; wait B@fence SUCCESS; synchronize A; holds state.low 1",),
        deaths=2,
    ),
    "slices": Scenario(  # a long command yields; its successors run once
        World({"x": (LONG, SIGNAL), "y": (COPY,)}, queues=TWO, slices=True),
        ("submit A@fence x; submit B y; wait A@fence SUCCESS; synchronize B",),
    ),
}
