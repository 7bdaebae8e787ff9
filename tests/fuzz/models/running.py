"""Running a compiled model: the common part of OpenVINO's and softnpu's requests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import openvino as ov

from tests.fuzz.models.case import Case
from tests.fuzz.models.records import Job, Refusal, Step, Value
from tests.fuzz.models.values import bytes_of, name_of

_REQUESTS = 3
_kept: list[Any] = []
"""The last queue and its model, kept until the next ones."""
Refuse = Callable[[str, Exception], Refusal]


class Runner:
    """Runs a case on a compiled model; `refuse` handles exceptions."""

    def __init__(self, case: Case, compiled: Any, job: Job, refuse: Refuse, queue: Any) -> None:
        self._case = case
        self._compiled = compiled
        self._job = job
        self._refuse = refuse
        self._queue = queue

    def run(self, how: str) -> list[list[Step]]:
        """Return the rounds of one way to run."""
        return _RUNS[how](self)

    # ------------------------------------------------------------ parts

    def request(self) -> Any:
        return self._compiled.create_infer_request()

    def outputs(self, request: Any) -> list[Value]:
        """Return the contents of the request's output tensors."""
        return values_of(request, len(self._case.model.outputs))

    def step(self, request: Any, start: Callable[[], object], wait: bool = True) -> Step:
        """Run one inference; return its result or refusal."""
        try:
            start()
            if wait:
                request.wait()
            return self.outputs(request)
        except Exception as error:  # noqa: BLE001 - every error is an answer here
            return self._refuse("infer", error)

    # ------------------------------------------------------------ ways

    def one(self) -> list[list[Step]]:
        """Use one request for all steps, `infer` with user data: arrays where their types exist."""
        request = self.request()
        steps: list[Step] = []
        for step in self._case.steps:
            given = dict(enumerate(map(_as_users_give, step)))
            steps.append(self.step(request, partial(request.infer, given), wait=False))
        return [steps]

    def shared(self) -> list[list[Step]]:
        """Run as `one`, with `share_inputs`; the first step's arrays are changed in place for the others."""
        if any(not one.size or not len(one.shape) for step in self._case.steps for one in step):
            return self.one()  # OpenVINO copies scalars and empty arrays anyway
        request = self.request()
        steps: list[Step] = []
        held: list[Any] | None = None
        for step in self._case.steps:
            if held is None or [list(one.shape) for one in held] != [list(one.shape) for one in step]:
                held = list(map(_as_users_give, step))
                given = dict(enumerate(held))
                start: Callable[..., object] = partial(request.infer, given, share_inputs=True)
            else:
                for place, one in zip(held, step, strict=True):
                    _write(place, one)
                start = request.infer
            steps.append(self.step(request, start, wait=False))
        return [steps]

    def fresh(self) -> list[list[Step]]:
        """Use a new request for every step; a stateful model continues in the same one."""
        if self._case.stateful:
            return self.one()
        steps: list[Step] = []
        for step in self._case.steps:
            request = self.request()
            steps.append(self.step(request, partial(request.infer, dict(enumerate(step))), wait=False))
        return [steps]

    def inplace(self) -> list[list[Step]]:
        """Write into the request's own tensors, twice over."""
        request = self.request()
        rounds = []
        for _ in range(1 if self._case.stateful else 2):
            steps: list[Step] = []
            for step in self._case.steps:

                def start(step: list[ov.Tensor] = step) -> None:
                    fill(request, step)
                    request.start_async()

                steps.append(self.step(request, start))
            rounds.append(steps)
        return rounds

    def set(self) -> list[list[Step]]:
        """Set user tensors for all inputs, and for outputs of known shape."""
        request = self.request()
        steps: list[Step] = []
        for step in self._case.steps:
            outputs = {
                index: ov.Tensor(port.element_type, port.shape)
                for index, port in enumerate(self._case.model.outputs)
                if port.partial_shape.is_static
            }
            if self._case.dynamic:
                outputs = {}

            def start(step: list[ov.Tensor] = step, outputs: dict[int, ov.Tensor] = outputs) -> None:
                for index, one in enumerate(step):
                    request.set_input_tensor(index, _copied(one))
                for index, one in outputs.items():
                    request.set_output_tensor(index, one)
                request.start_async()

            result = self.step(request, start)
            if isinstance(result, list):
                for index, one in outputs.items():
                    result[index] = value_of(one)  # the user's tensor, not the one that the request reports
            steps.append(result)
        return [steps]

    def many(self) -> list[list[Step]]:
        """Run several requests in flight, each with other inputs; `reset` kills the engine."""
        return self._many(reset=False)

    def reset(self) -> list[list[Step]]:
        """Run as `many`, and kill the engine during the second turn."""
        return self._many(reset=True)

    def queue(self) -> list[list[Step]]:
        """Use `AsyncInferQueue`; stateful models cannot."""
        if self._case.stateful:
            return self.many()
        count = len(self._case.steps)
        found: dict[int, Step] = {}
        failures: list[Refusal] = []  # which inferences failed is unknown

        def ended(request: Any, number: int) -> None:
            try:
                found[number] = self.outputs(request)
            except Exception as error:  # noqa: BLE001
                found[number] = self._refuse("infer", error)

        # if a thread of OpenVINO drops the last reference in its callback it joins itself: the process ends
        _kept[:] = [self._compiled]

        def queue_of_two() -> Any:
            queue = self._queue(self._compiled, 2)
            _kept.append(queue)
            queue.set_callback(ended)
            return queue

        def noted(call: Callable[..., object], *arguments: Any) -> bool:
            try:
                call(*arguments)
            except Exception as error:  # noqa: BLE001 - every error is an answer here
                failures.append(self._refuse("infer", error))
                return False
            return True

        queue = queue_of_two()
        for number in range(3 * count):
            given = dict(enumerate(self._case.steps[number % count]))
            if not noted(queue.start_async, given, number):
                # the failure of a previous one: OpenVINO's queue starts nothing more
                noted(queue.wait_all)
                queue = queue_of_two()
                noted(queue.start_async, given, number)
        noted(queue.wait_all)
        missing = (failures or [Refusal("infer", "nothing", "no callback and no error", typed=False)])[0]
        return [[found.get(turn * count + at, missing) for at in range(count)] for turn in range(3)]

    def handover(self) -> list[list[Step]]:
        """Run every step on a new request, which takes over the states."""
        steps: list[Step] = []
        before: Any = None
        for step in self._case.steps:
            request = self.request()
            if before is not None and self._case.stateful:
                states = {state.name: state for state in before.query_state()}
                try:
                    for state in request.query_state():
                        state.state = _copied(states[state.name].state)
                except Exception as error:  # noqa: BLE001
                    return [[*steps, self._refuse("state", error)]]
            steps.append(self.step(request, partial(request.infer, dict(enumerate(step))), wait=False))
            before = request
        return [steps]

    def remote(self) -> list[list[Step]]:
        """Use remote tensors for inputs and for outputs of known shape."""
        context = self._compiled.get_context()
        request = self.request()
        steps: list[Step] = []
        for step in self._case.steps:

            def start(step: list[ov.Tensor] = step) -> None:
                for index, one in enumerate(step):
                    place = context.create_tensor(one.element_type, one.shape, {})
                    _write(place, one)
                    request.set_input_tensor(index, place)
                for index, port in enumerate(self._case.model.outputs):
                    if port.partial_shape.is_static and not self._case.dynamic:
                        place = context.create_tensor(port.element_type, port.shape, {})
                        request.set_output_tensor(index, place)
                request.start_async()

            steps.append(self.step(request, start))
        return [steps]

    def _many(self, reset: bool) -> list[list[Step]]:
        """Run all steps twice on each request, which take turns at being the first.

        So an inference that may begin early, beside the one before, follows and is followed by one that may
        not.
        """
        case = self._case
        count = len(case.steps)
        turns = count if case.stateful else 2 * count
        requests = [self.request() for _ in range(_REQUESTS)]
        found: list[list[Step]] = [[] for _ in requests]
        for turn in range(turns):
            order = [(turn + place) % _REQUESTS for place in range(_REQUESTS)]
            failed: dict[int, Step] = {}
            for number in order:
                at = turn if case.stateful else (turn + number) % count
                try:
                    requests[number].start_async(dict(enumerate(case.steps[at])))
                except Exception as error:  # noqa: BLE001
                    failed[number] = self._refuse("infer", error)
            if reset and turn == min(1, turns - 1):
                os.kill(self._job.engine_pid, signal.SIGKILL)
            for number in order:
                found[number].append(failed.get(number) or self.step(requests[number], lambda: None))
        if case.stateful:
            return found
        rounds = []
        for number, steps in enumerate(found):
            first = -number % count  # the turn of step 0
            ordered = [[steps[(turn + at) % turns] for at in range(count)] for turn in (first, first + count)]
            rounds += ordered
        return rounds


RUNS = ("one", "shared", "fresh", "inplace", "set", "many", "queue", "handover", "remote", "reset")
_RUNS: dict[str, Callable[[Runner], list[list[Step]]]] = {name: getattr(Runner, name) for name in RUNS}


def values_of(request: Any, count: int) -> list[Value]:
    """Copy the outputs of a request."""
    return [value_of(request.get_output_tensor(index)) for index in range(count)]


def value_of(tensor: ov.Tensor) -> Value:
    """Copy the content of a tensor."""
    return Value(name_of(tensor.element_type), tuple(tensor.shape), bytes_of(tensor))


def fill(request: Any, step: list[ov.Tensor]) -> None:
    """Write inputs into the request's tensors."""
    for index, one in enumerate(step):
        place = request.get_input_tensor(index)
        if list(place.shape) != list(one.shape):
            place.shape = one.shape
            place = request.get_input_tensor(index)
        _write(place, one)


def _write(place: Any, one: ov.Tensor) -> None:
    if one.size:
        data = place if isinstance(place, np.ndarray) else np.asarray(place.data)
        data.reshape(-1).view(np.uint8)[:] = one.data.reshape(-1).view(np.uint8)


def _copied(one: ov.Tensor) -> ov.Tensor:
    made = ov.Tensor(one.element_type, one.shape)
    _write(made, one)
    return made


def _as_users_give(one: ov.Tensor) -> Any:
    return one if name_of(one.element_type) == "bf16" else np.array(one.data)
