"""Operations that inject a fault into their own session, and know its exact effects.

Only the listed effects are allowed: an error of another kind, a missing error, and any error on an object
unaffected by the fault are failures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from softnpu.driver import GraphSource, ZeError, ZeResult, faults
from softnpu.driver.graph_creation import import_blob
from softnpu.tools.stress.checking import WrongResult
from softnpu.tools.stress.client_session import await_fence
from softnpu.tools.stress.operations import Client, load_model, sample_of
from softnpu.tools.stress.plan import FAULTS, Step
from softnpu.tools.stress.progress_page import Field

_GOOD: Final = ZeResult.SUCCESS
_LOST: Final = ZeResult.ERROR_DEVICE_LOST

SUBMISSIONS: Final[dict[str, tuple[ZeResult, ...]]] = {
    "hang": (_LOST,),
    "stall": (_LOST,),
    "drop-signal": (_LOST,),
    "lost": (_LOST,),
    "ecc": (ZeResult.ERROR_UNKNOWN,),
    "fail": (ZeResult.ERROR_UNKNOWN,),
    "reset": (_GOOD,),
    "slow": (_GOOD,),
    # the engine may have been awake, or another doorbell wakes it in time
    "drop-doorbell": (_GOOD, _LOST),
}
"""Allowed ends of the affected submission, even if its engine is killed meanwhile: a failure is final."""
REPLACES_CLIENT: Final = ("hang", "stall", "drop-signal", "lost", "reset", "drop-doorbell", "disconnect")
"""After these the process ends and another replaces it: repeat offenders would rightly be refused."""


def inject_and_check(client: Client, step: Step) -> int:
    """Inject the step's fault; check its effects, and that everything else works afterwards."""
    kind = step.operation.removeprefix("fault ")
    operation = _submission if kind in SUBMISSIONS else REQUESTS[kind]
    checked = operation(client, step, kind)
    if kind == "disconnect":
        return checked
    loaded = load_model(client, step)
    if loaded is None:
        return checked
    loaded.infer(client.session.queue, sample_of(loaded, step, 1))
    return checked + loaded.workload.steps


def _submission(client: Client, step: Step, kind: str) -> int:
    loaded = load_model(client, step)
    if loaded is None:
        return 0
    queue = client.session.context.create_command_queue()
    sample = sample_of(loaded, step)
    with _injected(client, kind):
        inference = loaded.submit(queue, sample)
        result = _result(lambda: await_fence(inference.fence, f"a submission with the fault '{kind}'"))
    _check(kind, result, SUBMISSIONS[kind])
    if result == _GOOD:
        loaded.check(inference)
    if queue.lost != (result == _LOST):
        raise WrongResult(
            f"fault '{kind}': the submission ended with {_name(result)}, queue lost: {queue.lost}"
        )
    queue.destroy()
    return 1


def _allocation(client: Client, step: Step, kind: str) -> int:
    context = client.session.context
    with _injected(client, kind):
        result = _result(lambda: context.alloc_host(4096 + step.seed % 4096))
    _check(kind, result, (ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,))
    context.alloc_host(4096).view()[:] = 1
    return 0


def _compilation(client: Client, step: Step, kind: str) -> int:
    workload, _ = client.session.workloads[step.workload]
    with GraphSource.from_ir(workload.path) as source, _injected(client, kind):
        result = _result(lambda: client.session.context.create_graph(source))
    _check(kind, result, (ZeResult.ERROR_MODULE_BUILD_FAILURE,))
    return 0


def _load(client: Client, step: Step, kind: str) -> int:
    graph = client.compiling(partial(client.session.graph, step.workload))
    if graph is not None:
        with _injected(client, kind):
            result = _result(graph.initialize)
        _check(kind, result, (ZeResult.ERROR_MODULE_BUILD_FAILURE,))
    return 0


def _import(client: Client, step: Step, kind: str) -> int:
    loaded = load_model(client, step)
    blob = None if loaded is None else client.compiling(loaded.graph.get_native_binary)
    if blob is not None:
        context = client.session.context
        with _injected(client, kind):
            result = _result(lambda: import_blob(context, blob))
        _check(kind, result, (ZeResult.ERROR_INVALID_NATIVE_BINARY,))
    return 0


def _refusal(client: Client, step: Step, kind: str) -> int:
    del step
    context = client.session.context
    with _injected(client, kind, "queue_create=ERROR_NOT_AVAILABLE"):
        result = _result(context.create_command_queue)
    _check(kind, result, (ZeResult.ERROR_NOT_AVAILABLE,))
    context.create_command_queue().destroy()
    return 0


def _delay(client: Client, step: Step, kind: str) -> int:
    context = client.session.context
    with _injected(client, kind, "mem_alloc=30ms"):
        memory = context.alloc_host(1 + step.seed % 100_000)
    memory.view()[:] = 7
    return 0


def _disconnect(client: Client, step: Step, kind: str) -> int:
    del step
    context = client.session.context
    with _injected(client, kind):
        result = _result(lambda: context.alloc_host(4096))
    _check(kind, result, (_LOST,))
    client.reconnect()
    return 0


REQUESTS: Final[dict[str, Callable[[Client, Step, str], int]]] = {
    "oom": _allocation,
    "compile-fail": _compilation,
    "compile-crash": _compilation,
    "load-fail": _load,
    "import-fail": _import,
    "refuse": _refusal,
    "delay": _delay,
    "disconnect": _disconnect,
}


@contextmanager
def _injected(client: Client, kind: str, value: str | None = None) -> Iterator[None]:
    """Inject the fault for this session's next operations only."""
    session, row = client.session, client.progress.row(client.number)
    row[Field.FAULT], row[Field.FAULT_NS] = FAULTS.index(kind), time.monotonic_ns()
    with faults.injected(kind, socket=session.socket, session=session.driver.session, value=value):
        yield


def _result(call: Callable[[], object]) -> int:
    try:
        call()
    except ZeError as error:
        return error.result
    return _GOOD


def _check(kind: str, code: int, allowed: tuple[ZeResult, ...]) -> None:
    if code not in allowed:
        wanted = " or ".join(_name(result) for result in allowed)
        raise WrongResult(f"fault '{kind}' ended with {_name(code)}; expected {wanted}")


def _name(result: int) -> str:
    return ZeResult(result).name if result in list(ZeResult) else hex(result)
