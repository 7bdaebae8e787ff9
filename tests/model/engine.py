"""The engine, access by access, in the order of `queue.py`, `runner.py` and `overlap.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tests.model.checker import Process
from tests.model.commands import CUT_OFF, WAITS, Commands, check_may_write
from tests.model.operations import (
    Memory,
    Operation,
    Steps,
    Then,
    Violation,
    change,
    choose,
    load,
    load_own,
    store,
    store_own,
)
from tests.model.world import CANCELLED, LOST, SIGNALLED, SUCCESS, Slot


class Engine(Commands):
    """Successive engines."""

    def process(self) -> Process:
        """Return the engine for the checker."""
        phases: Mapping[str, Callable[..., Steps]] = {
            "start": self.serve,
            "restart": self.resume,
            "serve": self.serve,
            "run": self.run,
        }
        return Process("engine", phases, dies=True, lost=self.world.lost, background=True)

    # ------------------------------------------------------------ after a dead engine

    def resume(self) -> Steps:
        """Announce everything, settle every queue, and only then run something."""
        yield change("supervisor announces all", self._announce)
        for queue in self.world.queues:
            if not (yield load_own(f"{queue}.closed")):
                yield from self.settle(queue)
        if self.world.targets("update"):
            yield change("frees staging that nobody has logged", self._free_staging)
        return Then("serve")

    def _free_staging(self, memory: Memory) -> None:
        for queue in self.world.queues:
            here = memory[f"{queue}.completed"] + 1, memory[f"{queue}.step"]
            if memory[f"{queue}.intent"] == here and not memory[f"{queue}.intent event"]:
                return
        for state in self.world.targets("update"):
            memory[f"{state}.staging"] = "freed"

    def _announce(self, memory: Memory) -> None:
        memory["messages"], memory["known"] = (), frozenset(self.world.fences)
        for queue in self.world.queues:
            # no engine runs any of a queue whose destruction was requested: the request is answered
            memory[f"-gone {queue}"] = memory[f"{queue}.closed"] = memory[f"-leaving {queue}"]

    def settle(self, queue: str) -> Steps:
        """Model `EngineQueue.resume`."""
        completed = yield load_own(f"{queue}.completed")
        reached = yield load_own(f"{queue}.reached")
        step = reached[1] if reached[0] == completed + 1 else 0
        if not self.world.has("events are not settled"):
            step = yield from self._settle_event(queue, completed + 1, step)
        yield store_own(f"{queue}.step", step)
        if (yield load_own(f"{queue}.injected")) == completed + 1:
            info = yield load_own(f"{queue}.injected result")
            yield store_own(f"{queue}.poisoned", completed + 1)
            yield store_own(f"{queue}.poisoned info", info)
            left = yield load_own(f"{queue}.injection hits")

            def count(memory: Memory) -> None:
                memory["hits"] = min(left, memory["hits"])
                memory[f"-hit {queue}{completed + 1}"] = info

            yield change(f"{queue}{completed + 1} counts as hit", count)
        if (yield load(f"{queue}.done")) != completed:
            if self.world.has("ring is told before the fence"):
                yield store(f"{queue}.done", completed)
                yield from self._signal_fence(queue, completed)
                return
            if not self.world.has("resume does not tell the fence"):
                yield from self._signal_fence(queue, completed)
            yield store(f"{queue}.done", completed)

    def _settle_event(self, queue: str, sequence: int, step: int) -> Steps:
        event = yield load_own(f"{queue}.intent event")
        intent = yield load_own(f"{queue}.intent")
        if not event or intent != (sequence, step):
            return step
        now = yield load(event)
        if now.changes != (yield load_own(f"{queue}.value")):
            step += 1
            yield store_own(f"{queue}.reached", (sequence, step))
        elif not self.world.has("a settled intent stays"):
            yield store_own(f"{queue}.intent", (0, 0))
        return step

    def _signal_fence(self, queue: str, sequence: int) -> Steps:
        at = (sequence - 1) % self.world.slots
        slot: Slot = yield load(f"{queue}.slot{at}")
        if slot.sequence == sequence and slot.fence:
            result = yield load(f"{queue}.result{at}")
            armed = not self.world.has("resume signals without looking")
            yield from self.signal(slot.fence, slot.ticket, result, armed)

    # ------------------------------------------------------------ which queue

    def serve(self) -> Steps:
        """Take any queue that has work: the scheduler's choice is not modelled."""
        choice = yield choose("turns to", self._work)
        if choice == "messages":
            yield from self.read_messages("")
            return Then("serve")
        return Then("run", (choice,))

    def _work(self, memory: Memory) -> tuple[str, ...]:
        found = ["messages"] if memory["messages"] else []
        for queue in self.world.queues:
            pending = memory[f"{queue}.tail"] != memory[f"{queue}.completed"]
            if pending and not memory[f"{queue}.closed"] and not self._waits(memory, queue):
                found.append(queue)
        return tuple(found)

    def _waits(self, memory: Memory, queue: str) -> bool:
        """Return whether it would only wait: whoever signals an event or cancels rings the doorbell."""
        aside = memory[f"{queue}.aside"]
        slot: Slot = memory[f"{queue}.slot{memory[f'{queue}.completed'] % self.world.slots}"]
        cancelled = slot.fence and memory[f"{slot.fence}.cancel"] == slot.ticket
        return aside not in {"", "dropped"} and memory[aside].state != SIGNALLED and not cancelled

    # ------------------------------------------------------------ one slice of one submission

    def run(self, queue: str) -> Steps:
        """Model `Runner.run`."""
        world = self.world
        completed = yield load_own(f"{queue}.completed")
        slot: Slot = yield load(f"{queue}.slot{completed % world.slots}")
        if slot.sequence != completed + 1:
            raise Violation(f"{queue}: slot {slot.sequence} instead of {completed + 1}")
        if slot.fence in world.late and slot.fence not in (yield load_own("known")):
            yield from self.read_messages("")
            if (yield load_own(f"{queue}.closed")) and not world.has("runs what it has just dropped"):
                return Then("serve")
        info = ""
        if (yield load_own(f"{queue}.aside")) == "dropped":
            info = LOST
        elif (yield load_own(f"{queue}.poisoned")) == slot.sequence:
            info = yield load_own(f"{queue}.poisoned info")
        elif (yield from self._is_unwanted(queue, slot)):
            info = CANCELLED
        else:
            info = yield from self._slice(queue, slot)
            if info in {WAITS, CUT_OFF}:
                return Then("serve")
        if info and world.inferences:
            yield from self._cancel_early(queue)
        if not (yield load_own(f"{queue}.closed")):
            yield from self.finish(queue, slot, info or SUCCESS)
        return Then("serve")

    def _is_unwanted(self, queue: str, slot: Slot) -> Steps:
        unwanted = yield from self.is_cancelled(slot)
        if unwanted and not self.world.has("half of an effect is left"):
            # too late for a logged intent: half of it may have happened
            unwanted = not (yield from self.pending(queue, slot))
        return unwanted

    def _slice(self, queue: str, slot: Slot) -> Steps:
        world, work = self.world, self.world.lists[slot.work]
        yield store_own("abort", "")
        if world.decodes:
            waits = yield from self.checkpoint(queue, slot, (yield load_own(f"{queue}.step")))
            if waits:
                return WAITS if world.has("what ends a submission is lost while it is decoded") else waits
        if world.inferences:
            yield from self._adopt(queue, slot)
            yield from self._start_more(queue, slot)
        ended = yield from self._inject(queue, slot)
        if not ended or ended == "dropped":
            ended = (yield from self._run_steps(queue, slot)) or ended
        if not world.has("an abort is lost when it makes room"):
            ended = (yield load_own("abort")) or ended
        if ended != WAITS:
            yield store_own(f"{queue}.rest", 0)
        if ended == "dropped":
            yield store_own(f"{queue}.reached", (slot.sequence, len(work)))
            yield store_own(f"{queue}.aside", "dropped")
            ended = WAITS
        if slot.work in world.inferences and not world.has("claims without calling off"):
            yield from self.cancel_early(slot.work)
        if (yield load_own(f"{queue}.closed")):
            yield change(
                f"answers the destruction of {queue}", lambda memory: memory.update({f"-gone {queue}": True})
            )
        if (
            ended == CANCELLED
            and world.has("cancel is read again")
            and not (yield from self.is_cancelled(slot))
        ):
            return ""
        return ended

    def _run_steps(self, queue: str, slot: Slot) -> Steps:
        work = self.world.lists[slot.work]
        first = yield load_own(f"{queue}.step")
        rest = yield load_own(f"{queue}.rest")
        for step in range(first, len(work)):
            yield store_own(f"{queue}.step", step)
            yield store_own(f"{queue}.aside", "")
            waits = yield from self.command(queue, slot, step, work[step])
            if waits:
                return waits
            if step == first and rest:
                if not self.world.has("goes on without logging"):
                    yield store_own(f"{queue}.reached", (slot.sequence, step + 1))
            elif step != len(work) - 1:
                waits = yield from self.checkpoint(queue, slot, step + 1)
                if waits:
                    return waits
        return ""

    def _inject(self, queue: str, slot: Slot) -> Steps:
        """A user's injection: recorded before it counts, and counted before it acts."""
        result = self.world.injections.get(slot.work)
        if result is None:
            return ""
        if not (
            yield choose("an injection hits", lambda memory: (False, True) if memory["hits"] else (False,))
        ):
            return ""
        left = (yield load("hits")) - 1
        if self.world.has("a hit counts before it is logged"):
            yield store("hits", left)
        if not self.world.has("injections are not logged"):
            yield store_own(f"{queue}.injected", 0)
            yield store_own(f"{queue}.injected result", result)
            yield store_own(f"{queue}.injection hits", left)
            yield store_own(f"{queue}.injected", slot.sequence)

        def count(memory: Memory) -> None:
            memory["hits"] = left
            memory[f"-hit {queue}{slot.sequence}"] = result

        yield change(f"{queue}{slot.sequence} is to end with {result}", count)
        return "dropped" if result == LOST else result

    # ------------------------------------------------------------ inferences that begin early

    def _adopt(self, queue: str, slot: Slot) -> Steps:
        for entry in (yield load("early")):
            its = entry[:2] == (queue, slot.sequence)
            if its or entry[2] == slot.work:
                if not its or entry[2] != slot.work:
                    yield from self.cancel_early(entry[2])
                yield change(f"claims {entry}", partial(_without, entry=entry))

    def _start_more(self, queue: str, slot: Slot) -> Steps:
        if slot.work not in self.world.inferences:
            return
        for other in self.world.queues:
            if (yield load_own(f"{other}.closed")):
                continue
            behind = (yield load_own(f"{other}.completed")) + 1 + (other == queue)
            if (yield load(f"{other}.tail")) < behind:
                continue
            found: Slot = yield load(f"{other}.slot{(behind - 1) % self.world.slots}")
            early = yield load("early")
            if found.sequence != behind or found.work not in self.world.inferences or found.work == slot.work:
                continue
            if any(entry[2] == found.work for entry in early):
                continue
            if (yield choose(f"begins {found.work} early", lambda _: (False, True))):
                yield change(f"begins {found.work} early", partial(_begin, queue=other, slot=found))

    def _cancel_early(self, queue: str) -> Steps:
        for entry in (yield load("early")):
            if entry[0] == queue:
                yield from self.cancel_early(entry[2])
                yield change(f"drops {entry}", partial(_without, entry=entry))

    # ------------------------------------------------------------ end of a submission

    def finish(self, queue: str, slot: Slot, result: str) -> Steps:
        """Model `EngineQueue.finish`."""
        world, at = self.world, (slot.sequence - 1) % self.world.slots
        early = world.has("fence is signalled before the end is logged")
        late = world.has("result is written after the end is logged")
        if result != SUCCESS:
            yield store(f"{queue}.failed", (slot.sequence, result))
        if not late:
            yield store(f"{queue}.result{at}", result)
        if early and slot.fence:
            yield from self.signal(slot.fence, slot.ticket, result)
        yield change(
            f"{queue}{slot.sequence} is over: {result}", lambda memory: _over(memory, queue, slot, result)
        )
        if late:
            yield store(f"{queue}.result{at}", result)
        for word, value in (("step", 0), ("rest", 0), ("aside", "")):
            yield store_own(f"{queue}.{word}", value)
        if slot.fence and not early:
            yield from self.signal(slot.fence, slot.ticket, result)
        yield store(f"{queue}.done", slot.sequence)

    def signal(self, fence: str, ticket: int, result: str, look: bool = True) -> Steps:
        """Model `FenceRecord.signal`."""
        if look and (yield load(f"{fence}.armed")) != ticket:
            return
        yield store(f"{fence}.result", result)
        yield store(f"{fence}.signalled", ticket)


def stream(work: str) -> Process:
    """Compute an inference beside the engine, and end with it."""

    def compute() -> Steps:
        def run(memory: Memory) -> None:
            name = memory[f"{work}.stream"]
            check_may_write(memory, name[0], name, f"out.{work}")
            memory[f"out.{work}"], memory[f"{work}.stream"] = memory[f"in.{work}"], "ended"

        begun = Operation(
            f"writes out.{work}", run, ready=lambda memory: memory[f"{work}.stream"] not in {"", "ended"}
        )
        yield begun
        return Then("start")

    return Process(f"stream of {work}", {"start": compute}, background=True)


def watchdog() -> Process:
    """Request once, at any moment, that the first submission of A is aborted."""

    def poll(memory: Memory) -> None:
        memory["messages"] += (("abort", "A1"),)

    def start() -> Steps:
        yield change("sends the abort of A1", poll)

    return Process("watchdog", {"start": start}, background=True)


def _begin(memory: Memory, queue: str, slot: Slot) -> None:
    memory[f"{slot.work}.begun"], memory[f"{slot.work}.stream"] = True, f"{queue}{slot.sequence}"
    memory["early"] += ((queue, slot.sequence, slot.work),)


def _without(memory: Memory, entry: tuple[str, int, str]) -> None:
    memory["early"] = tuple(other for other in memory["early"] if other != entry)


def _over(memory: Memory, queue: str, slot: Slot, result: str) -> None:
    name = f"{queue}{slot.sequence}"
    if result == SUCCESS and memory[f"-cut {name}"]:
        raise Violation(f"submission {name} was cut off and ends with SUCCESS")
    if memory[f"-hit {name}"] not in {"", result}:
        raise Violation(
            f"submission {name} ends with {result} although {memory[f'-hit {name}']} was injected"
        )
    memory[f"-ended {name}"] = result
    memory[f"{queue}.completed"] = slot.sequence
