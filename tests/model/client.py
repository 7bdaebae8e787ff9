"""A program and its driver, access by access, as in `command_queue.py`, `submissions.py` and `fence.py`.

The results that a client receives are compared with the facts: the words of the model, and the outputs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tests.model.operations import Memory, Steps, Value, Violation, change, load, store, wait
from tests.model.world import MINE, RESET, SIGNALLED, SUCCESS, Event, Slot, World

NOT_READY = "NOT_READY"


@dataclass
class Execution:
    """The submissions of one call, and the ticket of their fence."""

    queue: str
    first: int
    last: int
    ticket: int = 0


@dataclass
class Fence:
    """A fence of a queue, at a place."""

    queue: str
    place: str
    execution: Execution | None = None


@dataclass
class Queue:
    """A thread's view of a queue."""

    name: str
    tail: int = 0
    destroyed: bool = False
    mark: int = 0  # only with the defect "one high-water mark": failures up to here count as reported


class Client:
    """One thread of a program, with its own driver."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.queues = {name: Queue(name) for name in world.queues}
        self._tickets = itertools.count(1)
        self._works: dict[str, str] = {}  # the list of each submission
        self._fences: dict[tuple[str, str], Fence] = {}

    def fence(self, queue: str, place: str) -> Fence:
        """Return the fence of a queue at a place."""
        return self._fences.setdefault((queue, place), Fence(queue, place))

    # ------------------------------------------------------------ submitting

    def submit(self, queue: str, works: list[str], fence: Fence | None = None) -> Steps:
        """Model `execute_command_lists`."""
        own, world = self.queues[queue], self.world
        needed = own.tail + len(works) - world.slots
        while needed > 0:
            done = yield from self._release_ended(own)
            if world.has("looks at the ring twice"):
                done = yield load(f"{queue}.done")
            if done >= needed:
                break
            yield wait(f"{queue} has room", lambda memory: memory[f"{queue}.done"] >= needed)
        execution = Execution(queue, own.tail + 1, own.tail + len(works))
        if fence is not None:
            yield from self._arm(fence, execution)
        for work in works:
            own.tail += 1
            at = (own.tail - 1) % world.slots
            last = fence is not None and own.tail == execution.last
            slot = (
                Slot(own.tail, work, fence.place, execution.ticket)
                if last and fence
                else Slot(own.tail, work)
            )
            yield store(f"{queue}.slot{at}", slot)
            yield store(f"{queue}.result{at}", SUCCESS)
            self._works[f"{queue}{own.tail}"] = work
        yield store(f"{queue}.tail", own.tail)
        return execution

    def _arm(self, fence: Fence, execution: Execution) -> Steps:
        world = self.world
        execution.ticket = (
            execution.last if world.has("ticket is the sequence number") else next(self._tickets)
        )
        fence.execution = execution
        if world.has("signalled is a flag"):
            yield store(f"{fence.place}.signalled", 0)
        if world.has("cancel is a flag") or world.has("cancel is read again"):
            yield store(f"{fence.place}.cancel", 0)
        yield store(f"{fence.place}.given", execution.ticket)
        yield store(f"{fence.place}.armed", execution.ticket)

    def _release_ended(self, queue: Queue) -> Steps:
        done = yield load(f"{queue.name}.done")
        yield from self._read(queue.name, min(done, queue.tail))
        return done

    def _read(self, queue: str, completed: int) -> Steps:
        """Model `Outcomes.read`, under the queue's lock; return the known results."""

        def run(memory: Memory) -> tuple[str, ...]:
            results: tuple[str, ...] = memory[f"{queue}.outcomes"]
            for sequence in range(len(results) + 1, completed + 1):
                result = memory[f"{queue}.result{(sequence - 1) % self.world.slots}"]
                results += (result,)
                if result != SUCCESS:
                    memory[f"{queue}.unreported"] += ((sequence, result),)
            memory[f"{queue}.outcomes"] = results
            return results

        return (yield change(f"reads results up to {queue}{completed}", run))

    def _take_unreported(self, queue: str, only: int = 0) -> Steps:
        """Return the unreported failures, which count as reported from now on."""

        def run(memory: Memory) -> tuple[tuple[int, str], ...]:
            unreported = memory[f"{queue}.unreported"]
            taken = tuple(entry for entry in unreported if only in {0, entry[0]})
            memory[f"{queue}.unreported"] = tuple(entry for entry in unreported if entry not in taken)
            memory.update({f"-told {queue}{sequence}": result for sequence, result in taken})
            return taken

        return dict((yield change("takes what nobody was told of", run)))

    def fence_of_another_thread(self, queue: str, place: str, work: str) -> Fence:
        """Return a fence that another thread has given to the very first submission."""
        self._works[f"{queue}1"] = work
        return Fence(queue, place, Execution(queue, 1, 1, 1))

    # ------------------------------------------------------------ waiting

    def wait_fence(self, fence: Fence) -> Steps:
        """Model `host_synchronize`: SUCCESS, a failure, or NOT_READY if it will not be signalled for that."""
        execution = fence.execution
        assert execution is not None
        place, ticket, queue = fence.place, execution.ticket, self.queues[execution.queue]
        flag = self.world.has("signalled is a flag")

        def signalled(memory: Memory) -> bool:
            return bool(memory[f"{place}.signalled"]) if flag else memory[f"{place}.signalled"] == ticket

        def over(memory: Memory) -> bool:
            gone = queue.destroyed or memory[f"-gone {queue.name}"]
            return signalled(memory) or memory[f"{queue.name}.done"] >= execution.last or gone

        yield wait(f"{place} is signalled with {ticket}", over)
        found = yield load(f"{place}.signalled")
        if not (found if flag else found == ticket):
            return (
                yield change(
                    "is told NOT_READY", lambda memory: self._check_not_ready(memory, fence, execution)
                )
            )
        result = yield load(f"{place}.result")
        several, world = execution.first != execution.last, self.world
        # armed again meanwhile, so it may have the result of another submission
        other = (yield load(f"{place}.given")) != ticket
        if world.has("the result in a fence is believed"):
            other = False
        elif world.has("the ticket is looked at again"):
            other = (yield load(f"{place}.signalled")) != ticket
        if several or other or result != SUCCESS:
            results = yield from self._read(queue.name, execution.last)
            failed = [s for s in range(execution.first, execution.last + 1) if results[s - 1] != SUCCESS]
            if not (several and world.has("the fence has the last result only")):
                result = results[failed[0] - 1] if failed else SUCCESS
        if result != SUCCESS:
            yield from self._take_unreported(queue.name, failed[0])
            queue.mark = max(queue.mark, execution.last)
        yield from self._report(execution.queue, range(execution.first, execution.last + 1), result)
        return result

    def synchronize(self, queue: str) -> Steps:
        """Model `zeCommandQueueSynchronize`: return the unreported failures."""
        own = self.queues[queue]
        yield wait(f"{queue} has ended all", lambda memory: memory[f"{queue}.done"] >= own.tail)
        yield from self._release_ended(own)
        if self.world.has("one high-water mark"):
            sequence, result = yield load(f"{queue}.failed")
            unreported = {sequence: result} if sequence > own.mark else {}
        else:
            unreported = yield from self._take_unreported(queue)
        yield from self._report(queue, range(1, own.tail + 1), "", unreported)
        return unreported

    def wait_event(self, event: str) -> Steps:
        """Model `zeEventHostSynchronize`."""
        yield wait(f"{event} is signalled", lambda memory: memory[event].state == SIGNALLED)

    # ------------------------------------------------------------ other calls

    def cancel(self, fence: Fence) -> Steps:
        """Model `Fence.cancel`."""
        assert fence.execution is not None
        yield store(f"{fence.place}.cancel", fence.execution.ticket)

    def reset_fence(self, fence: Fence) -> Steps:
        """Model `zeFenceReset` of a fence that no submission will signal, and the effect of destroying it."""
        yield store(f"{fence.place}.armed", 0)
        fence.execution = None

    def set_event(self, event: str, state: str) -> Steps:
        """Model `zeEventHostSignal`, `zeEventHostReset`: four of the eight bytes."""

        def run(memory: Memory) -> None:
            memory[event] = Event(state, memory[event].changes)

        yield change(f"{event} is {state} by the host", run)

    def reset_event(self, event: str) -> Steps:
        """Model `zeEventHostReset`."""
        yield from self.set_event(event, RESET)

    def create_fence(self, place: str) -> Steps:
        """Model `zeFenceCreate`, in memory that the engine knows."""
        yield change(f"allocates {place}", lambda memory: _send(memory, "memory", place))

    def destroy(self, queue: str) -> Steps:
        """Model `zeCommandQueueDestroy`: return once the engine no longer runs any of its work."""
        self.queues[queue].destroyed = True
        yield change(f"asks to destroy {queue}", lambda memory: _send(memory, "drop", queue))
        if not self.world.has("destruction is not waited for"):
            yield wait(f"{queue} is destroyed", lambda memory: memory[f"-gone {queue}"])

    def write(self, word: str, value: Value) -> Steps:
        """Write its own memory."""
        yield store(word, value)

    # ------------------------------------------------------------ results

    def _report(
        self, queue: str, sequences: range, result: str, unreported: dict[int, str] | None = None
    ) -> Steps:
        """Report to the client how these submissions ended. `unreported`: the result of each that failed."""
        what = result if unreported is None else f"{dict(unreported)}" if unreported else SUCCESS

        def run(memory: Memory) -> None:
            for sequence in sequences:
                name = f"{queue}{sequence}"
                ended = memory[f"-ended {name}"]
                if not ended:
                    raise Violation(f"told {what} for {name}, which has not ended")
                said = result if unreported is None else unreported.get(sequence, SUCCESS)
                before = memory[f"-told {name}"]
                if ended == SUCCESS and unreported is None and said != SUCCESS:
                    continue  # another submission of the call has failed
                if said == SUCCESS and ended != SUCCESS and not (unreported is not None and before == ended):
                    raise Violation(f"told {what} for {name}, which has ended with {ended}")
                if said != SUCCESS and unreported is not None and said != ended:
                    raise Violation(f"told {what} for {name}, which has ended with {ended}")
                if ended == SUCCESS:
                    self._check_done(memory, name)
                if said == ended:
                    memory[f"-told {name}"] = said

        yield change(f"is told {what}", run)

    def _check_done(self, memory: Memory, name: str) -> None:
        """Check that everything a submission was to do has been done, exactly once."""
        work = self._works[name]
        changes = []
        for step, command in enumerate(self.world.lists[work]):
            if command.kind in {"copy", "long", "infer"} and not memory[f"-told {name}"]:
                found, expected = memory[f"out.{work}"], memory[f"in.{work}"]
                if found not in {expected, MINE}:
                    raise Violation(
                        f"told SUCCESS for {name}, but out.{work} is {found} instead of {expected}"
                    )
            if command.kind in {"signal", "reset"}:
                changes.append(step)
        if memory[f"-changes {name}"] != tuple(changes):
            done = memory[f"-changes {name}"]
            raise Violation(
                f"told SUCCESS for {name}, but its events were changed by {done} instead of {changes}"
            )

    def _check_not_ready(self, memory: Memory, fence: Fence, execution: Execution) -> str:
        lives = not memory[f"-gone {execution.queue}"] and not self.queues[execution.queue].destroyed
        if memory[f"{fence.place}.armed"] == execution.ticket and lives:
            raise Violation(
                f"{execution.queue}{execution.last} has ended, and {fence.place} was not signalled for it"
            )
        return NOT_READY


def check_all_reported(memory: Memory, injections: int) -> None:
    """Check that every failure and every counted hit was reported to somebody, and no state is torn."""
    hits = sum(word.startswith("-hit") and bool(result) for word, result in memory.items())
    if injections - memory["hits"] != hits:
        raise Violation(f"{injections - memory['hits']} hits were counted, {hits} were told")
    for word, result in memory.items():
        ended = word.startswith("-ended") and result not in {"", SUCCESS}
        if ended and not memory[word.replace("ended", "told")]:
            raise Violation(f"nobody was told that {word.split()[1]} has ended with {result}")
    for word, low in memory.items():
        if word.endswith(".low") and low != memory[word.replace(".low", ".high")]:
            raise Violation(f"{word.split('.')[0]} is torn: {low}, {memory[word.replace('.low', '.high')]}")


def _send(memory: Memory, message: str, name: str) -> None:
    memory["messages"] += ((message, name),)
    if message == "drop":
        memory[f"-leaving {name}"] = True
