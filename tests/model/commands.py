"""The commands, access by access, as in `program.py`, `inference.py` and `staging.py`."""

from __future__ import annotations

from tests.model.operations import (
    Memory,
    Steps,
    Value,
    Violation,
    change,
    choose,
    load,
    load_own,
    store_own,
    wait,
)
from tests.model.world import CANCELLED, FAILED, LOST, RESET, SIGNALLED, Command, Event, Slot, World

CUT_OFF, WAITS = "cut off", "waits"
"""The submission was cut off because its queue is gone; it continues later."""


class Commands:
    """The commands. Each returns "" when it is done, else why its submission does not continue."""

    def __init__(self, world: World) -> None:
        self.world = world

    def command(self, queue: str, slot: Slot, step: int, command: Command) -> Steps:
        """Execute one command of a submission."""
        name = f"_{command.kind}"
        return (yield from getattr(self, name)(queue, slot, step, command.target))

    def log_intent(self, queue: str, slot: Slot, step: int, value: Value, event: str = "") -> Steps:
        """Log the intent of a step before it acts; a death in between leaves no log entry."""
        yield store_own(f"{queue}.intent", (0, 0))
        yield store_own(f"{queue}.value", value)
        yield store_own(f"{queue}.intent event", event)
        yield store_own(f"{queue}.intent", (slot.sequence, step))

    def pending(self, queue: str, slot: Slot) -> Steps:
        """Return whether a dead engine has staged the results of the step where this submission continues."""
        intent = yield load_own(f"{queue}.intent")
        event = yield load_own(f"{queue}.intent event")
        step = yield load_own(f"{queue}.step")
        return intent == (slot.sequence, step) and not event

    # ------------------------------------------------------------ copies

    def _copy(self, queue: str, slot: Slot, _step: int, _: str) -> Steps:
        yield write(queue, slot, f"out.{slot.work}", f"in.{slot.work}")
        return ""

    def _long(self, queue: str, slot: Slot, step: int, _: str) -> Steps:
        rest = yield load_own(f"{queue}.rest")
        if not rest:
            yield write(queue, slot, f"out.{slot.work}", None)
            yield store_own(f"{queue}.rest", 1)
            waits = yield from self.checkpoint(queue, slot, step)
            if waits:
                return waits
        yield write(queue, slot, f"out.{slot.work}", f"in.{slot.work}")
        yield store_own(f"{queue}.rest", 0)
        return ""

    def _fail(self, _queue: str, _slot: Slot, _step: int, _: str) -> Steps:
        yield from ()
        return FAILED

    # ------------------------------------------------------------ events

    def _signal(self, queue: str, slot: Slot, step: int, event: str) -> Steps:
        return (yield from self._change(queue, slot, step, event, SIGNALLED))

    def _reset(self, queue: str, slot: Slot, step: int, event: str) -> Steps:
        return (yield from self._change(queue, slot, step, event, RESET))

    def _change(self, queue: str, slot: Slot, step: int, event: str, state: str) -> Steps:
        before: Event = yield load(event)
        yield from self.log_intent(queue, slot, step, before.changes, event)
        before = yield load(event)

        def run(memory: Memory) -> None:
            memory[event] = Event(state, before.changes + 1)
            happened = f"-changes {queue}{slot.sequence}"
            if step in memory[happened]:
                raise Violation(f"step {step} of submission {queue}{slot.sequence} has changed {event} twice")
            memory[happened] += (step,)

        yield change(f"{event} is {state} by {queue}{slot.sequence}", run)
        return ""

    def _wait(self, queue: str, slot: Slot, step: int, event: str) -> Steps:
        now: Event = yield load(event)
        if now.state == SIGNALLED:
            return ""
        yield store_own(f"{queue}.reached", (slot.sequence, step))
        yield store_own(f"{queue}.aside", event)
        return WAITS

    # ------------------------------------------------------------ inferences

    def _update(self, queue: str, slot: Slot, step: int, state: str) -> Steps:
        """An inference whose output is its input: results stay in staging until the intent is logged."""
        staging = f"{state}.staging"
        if not (yield from self.pending(queue, slot)) or self.world.has("staging is not logged"):
            low = yield load(f"{state}.low")
            high = yield load(f"{state}.high")
            if low != high:
                raise Violation(f"{queue}{slot.sequence} computes from a torn state: {low}, {high}")
            waits = yield from self.poll(queue, slot)
            if waits and not self.world.has("copies what was cut off"):
                return waits
            if not waits:
                yield store_own(staging, low + 1)
            if not self.world.has("staging is not logged"):
                yield from self.log_intent(queue, slot, step, "staged")
        else:
            waits = ""
            if (yield load_own(staging)) == "freed":
                raise Violation(f"results of {queue}{slot.sequence} were logged and are not there")
        yield write(queue, slot, f"{state}.low", staging)
        yield write(queue, slot, f"{state}.high", staging)
        return waits

    def _infer(self, queue: str, slot: Slot, _step: int, _: str) -> Steps:
        """Model `Binding.run`: continue an inference that has begun early."""
        work = slot.work
        begun = yield load(f"{work}.begun")
        yield change(f"takes {work} over", _setter(f"{work}.begun", False))
        if not begun:
            yield change(f"begins {work}", _setter(f"{work}.stream", f"{queue}{slot.sequence}"))

        def come(memory: Memory) -> tuple[str, ...]:
            if memory[f"{work}.stream"] == "ended":
                return ("ended",)
            return ("looks",) if self.world.looks else ()

        if (yield choose(f"waits for {work}", come)) == "looks":
            waits = yield from self.poll(queue, slot)
            if waits:
                yield change(f"cancels {work}", _setter(f"{work}.stream", ""))
                return waits
            yield wait(f"{work} ends", lambda memory: memory[f"{work}.stream"] == "ended")
        yield change(f"{work} is done", _setter(f"{work}.stream", ""))
        return ""

    def cancel_early(self, work: str) -> Steps:
        """End the inferences that have begun early; after that they write nothing."""

        def run(memory: Memory) -> None:
            if memory[f"{work}.begun"]:
                memory[f"{work}.begun"], memory[f"{work}.stream"] = False, ""

        yield change(f"cancels {work} early", run)

    # ------------------------------------------------------------ between two commands

    def checkpoint(self, queue: str, slot: Slot, step: int) -> Steps:
        """Model `Runner._checkpoint`: messages, cancellation, preemption."""
        yield store_own(f"{queue}.reached", (slot.sequence, step))
        waits = yield from self.poll(queue, slot)
        if waits:
            return waits
        if self.world.slices:
            yield from self.read_messages(queue)
            if (yield choose("makes room", lambda _: (False, True), hidden=True)):
                yield store_own(f"{queue}.step", step)
                return WAITS
        return ""

    def poll(self, queue: str, slot: Slot) -> Steps:
        """Model `Runner.is_cancelled`: whether the submission must end now."""
        if not self.world.looks or not (yield choose("polls", lambda _: (False, True), hidden=True)):
            return ""
        yield from self.read_messages(queue)
        if (yield load_own(f"{queue}.closed")):
            return CUT_OFF
        if (yield from self.is_cancelled(slot)):
            yield change(
                f"cuts {queue}{slot.sequence} off", _setter(f"-cut {queue}{slot.sequence}", "cut off")
            )
            return CANCELLED
        return (yield load_own("abort"))

    def is_cancelled(self, slot: Slot) -> Steps:
        """Return whether the driver has cancelled the submission."""
        if not slot.fence:
            return False
        cancel = yield load(f"{slot.fence}.cancel")
        return bool(cancel) if self.world.has("cancel is a flag") else cancel == slot.ticket

    def read_messages(self, running: str) -> Steps:
        """Handle the supervisor's messages; dropping the running queue is reported after its turn."""

        def run(memory: Memory) -> None:
            for message, name in memory["messages"]:
                if message == "memory":
                    memory["known"] |= {name}
                    continue
                if message == "abort":
                    if running and name == f"{running}{memory[f'{running}.completed'] + 1}":
                        memory["abort"], memory[f"-cut {name}"] = LOST, "aborted"
                    continue
                memory[f"{name}.closed"] = True
                for queue, _, work in memory.get("early", ()):
                    if queue == name and memory[f"{work}.begun"]:
                        memory[f"{work}.begun"], memory[f"{work}.stream"] = False, ""
                if "early" in memory:
                    memory["early"] = tuple(entry for entry in memory["early"] if entry[0] != name)
                if name != running:
                    memory[f"-gone {name}"] = True
            memory["messages"] = ()

        yield change("reads messages", run)


def write(queue: str, slot: Slot, target: str, source: str | None) -> Value:
    """Write the current content of the source to client memory; None: half of it."""
    name = f"{queue}{slot.sequence}"

    def run(memory: Memory) -> None:
        check_may_write(memory, queue, name, target)
        memory[target] = "half" if source is None else memory[source]

    return change(f"{name} writes {target}", run)


def check_may_write(memory: Memory, queue: str, name: str, target: str) -> None:
    """Check that nothing writes to memory that was returned to the client."""
    if memory[f"-gone {queue}"]:
        raise Violation(f"submission {name} writes {target} after the destruction of {queue} was answered")
    if memory[f"-told {name}"]:
        raise Violation(f"submission {name} writes {target} after the client was told that it has ended")


def _setter(word: str, value: Value) -> Value:
    def run(memory: Memory) -> None:
        memory[word] = value

    return run
