"""`farm.remote`: tasks and actors that see exactly the devices assigned by Ray."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from softnpu.emulator.platforms import DEFAULT_PLATFORM
from softnpu.farm import assignment
from softnpu.farm.errors import abandon_worker, is_loss
from softnpu.farm.resources import wanted


def remote(
    target: Callable[..., Any] | type | None = None,
    *,
    devices: float = 1,
    platform: str = DEFAULT_PLATFORM,
    **options: Any,
) -> Any:
    """`ray.remote` for a function or a class that needs devices; `options` are those of `ray.remote`.

    `devices`: exclusive whole devices, or, below 1, a share of one. Inside they are numbered from 0. If they
    are lost, for instance because the daemon died, the worker exits, so that Ray retries as its options
    allow: `max_retries` of a task, `max_restarts` and `max_task_retries` of an actor. An exception of the
    program is not retried.

    A task has a worker of its own (`max_calls=1`), as for GPUs in Ray.
    Raises `FarmError` for an impossible number of devices, `Refused` for an unknown platform.
    """
    import ray

    resources = {**options.pop("resources", {}), **wanted(devices, platform)}
    if target is None:
        return lambda one: _remote(ray, one, resources, options)
    return _remote(ray, target, resources, options)


def _remote(ray: Any, target: Any, resources: dict[str, float], options: dict[str, Any]) -> Any:
    if inspect.isclass(target):
        return ray.remote(resources=resources, **options)(_actor_class(target))
    return ray.remote(resources=resources, **{"max_calls": 1, **options})(_task(target))


@contextmanager
def _devices_held() -> Iterator[None]:
    """End the worker if its devices are gone, or an exception says so."""
    try:
        assignment.lease()
        yield
    except Exception as failure:
        if is_loss(failure) or assignment.is_lost():
            abandon_worker(failure)
        raise


def _task(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function: it leases its devices, and returns them at its end."""
    if not inspect.iscoroutinefunction(function):
        return _wrapped(function, _task_devices)

    # Ray has no asynchronous tasks
    @functools.wraps(function)
    def run_async(*args: Any, **kwargs: Any) -> Any:
        with _task_devices():
            return asyncio.run(function(*args, **kwargs))

    del run_async.__wrapped__  # Ray would unwrap it, and see a coroutine function
    return run_async


@contextmanager
def _task_devices() -> Iterator[None]:
    try:
        with _devices_held():
            yield
    finally:
        assignment.release()


def _actor_class(kind: type) -> type:
    """Return a subclass that leases its devices before it begins, and whose methods detect their loss."""
    body: dict[str, Any] = {
        name: _method(member)
        for base in reversed(kind.__mro__[:-1])
        for name, member in vars(base).items()
        if inspect.isfunction(member) and (not name.startswith("__") or name in ("__init__", "__call__"))
    }
    if "__init__" not in body:
        body["__init__"] = _init(kind)
    names = ("__module__", "__qualname__", "__doc__")
    return type(kind.__name__, (kind,), body | {name: getattr(kind, name) for name in names})


def _init(kind: type) -> Callable[..., None]:
    initialise = inspect.getattr_static(kind, "__init__")

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        with _devices_held():
            initialise(self, *args, **kwargs)

    return __init__


def _method(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method, keeping its kind: synchronous, asynchronous, or a generator of either."""
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            with _devices_held():
                return await method(*args, **kwargs)

        return call_async
    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        async def generate_async(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            with _devices_held():
                async for each in method(*args, **kwargs):
                    yield each

        return generate_async
    return _wrapped(method, _devices_held)


def _wrapped(
    function: Callable[..., Any], devices: Callable[[], AbstractContextManager[None]]
) -> Callable[..., Any]:
    """Wrap a function or a generator: it runs with `devices`."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with devices():
                yield from function(*args, **kwargs)

        return generate

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with devices():
            return function(*args, **kwargs)

    return call
