"""Base of the handle classes: destroyed once, at the latest when unreferenced; use after destroy raises."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from softnpu.driver.errors import ZeError, error, uninitialized
from softnpu.emulator.interface.result import ZeResult

if TYPE_CHECKING:
    from softnpu.driver.connection import Connection

H = TypeVar("H", bound="Handle")


class Handle:
    """A Level Zero object. `destroy` is idempotent; use after it raises.

    An object without `destroy` is destroyed when Python collects it. Destroying an object destroys everything
    created through it.
    """

    _alive = False
    _creator_pid = 0
    _children: weakref.WeakValueDictionary[int, Handle] | None = None
    _release: Callable[[], None]
    _finalizer: weakref.finalize[..., Any]

    def _register(
        self, owner: Handle | None, connection: Connection, release: Callable[..., None], *args: object
    ) -> None:
        """Record the owner, and the call that destroys the object; `args` must not refer to the object.

        `release(*args)` is called once, but not if `owner` is destroyed first: the daemon then ends both.
        """
        if owner is not None:
            children = owner._children
            if children is None:  # most have none, and there are many allocations; any thread may make it
                children = vars(owner).setdefault("_children", weakref.WeakValueDictionary())
            children[id(self)] = self
        _live[id(self)] = self
        self._alive = True
        self._release = partial(release, *args)
        self._finalizer = weakref.finalize(self, connection.defer, self._release)
        self._finalizer.atexit = False  # the daemon frees everything when the process ends

    def destroy(self) -> None:
        """Destroy the object and everything created through it."""
        if self._detach():
            self._destroy_children()
            self._release()
            self._drop_references()

    @property
    def destroyed(self) -> bool:
        """Whether `destroy` was called."""
        return not self._alive

    def _check(self, call: str) -> None:
        """Raise `ZeError`: INVALID_NULL_HANDLE after `destroy`, UNINITIALIZED in a forked child."""
        if not self._alive:
            raise self._unusable(call)

    def _detach(self) -> bool:
        """End the use of the object; return whether this call did."""
        ended = self._finalizer.detach() is not None
        self._alive = False
        return ended

    def _destroy_children(self) -> None:
        for reference in () if self._children is None else self._children.valuerefs():
            child = reference()
            if child is not None and child._detach():
                child._destroy_children()
                child._owner_destroyed()
                child._drop_references()

    def _owner_destroyed(self) -> None:
        """Release this process's own resources: the daemon has destroyed the rest with the owner."""

    def _drop_references(self) -> None:
        """Drop references that keep device memory alive; called however the object is destroyed."""

    def _unusable(self, call: str) -> ZeError:
        name = type(self).__name__
        if self._creator_pid:
            return uninitialized(
                call,
                name,
                found=f"created by process {self._creator_pid}, used in its forked child {os.getpid()}",
                expected=f"a {name} of this process",
                hint="open a driver after the fork",
            )
        return error(
            call,
            ZeResult.ERROR_INVALID_NULL_HANDLE,
            name,
            found="used after it, or what it was created through, was destroyed",
            expected=f"a live {name}",
        )

    def __enter__(self: H) -> H:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()


_live: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()


def _detach_in_child() -> None:
    # a forked child shares rings and fences with its parent: using them would act for the parent
    for reference in _live.valuerefs():
        handle = reference()
        if handle is not None and handle._detach():
            handle._creator_pid = os.getppid()


os.register_at_fork(after_in_child=_detach_in_child)
