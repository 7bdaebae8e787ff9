"""What all handle classes share: one destruction, loud use after it, and no leak when it is forgotten."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from softnpu.driver.errors import ZeError, error
from softnpu.emulator.interface.result import ZeResult

if TYPE_CHECKING:
    from softnpu.driver.connection import Connection

H = TypeVar("H", bound="Handle")


class Handle:
    """Base of every Level Zero object. `destroy` is harmless when repeated; use after it raises.

    An object that is dropped without `destroy` is given back when Python collects it. Destroying an object
    ends all that was created through it.
    """

    _made_by = 0
    _release: Callable[[], None]
    _finalizer: weakref.finalize[..., Any]

    def _owns(
        self, owner: Handle | None, connection: Connection, release: Callable[..., None], *args: object
    ) -> None:
        """`release(*args)`, which must not refer to this object, gives it back; called exactly once.

        It is not called when `owner` is destroyed first, for the daemon ends both then.
        """
        self._children: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()
        if owner is not None:
            owner._children[id(self)] = self
        _live[id(self)] = self
        self._release = partial(release, *args)
        self._finalizer = weakref.finalize(self, connection.defer, self._release)
        self._finalizer.atexit = False  # the daemon takes everything back when the process ends

    def destroy(self) -> None:
        """Gives the object back to the device."""
        if self._finalizer.detach() is not None:
            self._end_children()
            self._release()
            self._let_go()

    @property
    def destroyed(self) -> bool:
        """Whether `destroy` was called."""
        return not self._finalizer.alive

    def check(self, call: str) -> None:
        """Raises `ZeError`: INVALID_NULL_HANDLE after `destroy`, UNINITIALIZED in a forked child."""
        if not self._finalizer.alive:
            raise self._unusable(call)

    def _end_children(self) -> None:
        for reference in self._children.valuerefs():
            child = reference()
            if child is not None and child._finalizer.detach() is not None:
                child._end_children()
                child._forget()
                child._let_go()

    def _forget(self) -> None:
        """Ended with its owner: lets go of what only this process holds. The daemon does the rest."""

    def _let_go(self) -> None:
        """Destroyed, by itself or with its owner: drops what would keep memory of the device."""

    def _unusable(self, call: str) -> ZeError:
        name = type(self).__name__
        if self._made_by:
            return error(
                call,
                ZeResult.ERROR_UNINITIALIZED,
                name,
                found=f"created by process {self._made_by}, used in its forked child {os.getpid()}",
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


def _disown() -> None:
    # a forked child shares rings and fences with its parent: what it does with them would be the parent's
    for reference in _live.valuerefs():
        handle = reference()
        if handle is not None and handle._finalizer.detach() is not None:
            handle._made_by = os.getppid()


os.register_at_fork(after_in_child=_disown)
