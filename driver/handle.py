"""What all handle classes share: one destruction, loud use after it, and no leak when it is forgotten."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from softnpu.driver.errors import error
from softnpu.emulator.interface.result import ZeResult

if TYPE_CHECKING:
    from softnpu.driver.connection import Connection

H = TypeVar("H", bound="Handle")


class Handle:
    """Base of every Level Zero object. `destroy` is harmless when repeated; use after it raises.

    An object that is dropped without `destroy` is given back when Python collects it.
    """

    _release: Callable[[], None]
    _finalizer: weakref.finalize[..., Any]

    def _owns(self, connection: Connection, release: Callable[..., None], *args: object) -> None:
        """`release(*args)`, which must not refer to this object, gives it back; called exactly once."""
        self._release = partial(release, *args)
        self._finalizer = weakref.finalize(self, connection.at_leisure, self._release)
        self._finalizer.atexit = False  # the daemon takes everything back when the process ends

    def destroy(self) -> None:
        """Gives the object back to the device."""
        if self._finalizer.detach() is not None:
            self._release()

    @property
    def destroyed(self) -> bool:
        """Whether `destroy` was called."""
        return not self._finalizer.alive

    def check(self, call: str) -> None:
        """Raises `ZeError` with ERROR_INVALID_NULL_HANDLE after `destroy`."""
        if not self._finalizer.alive:
            raise error(
                call,
                ZeResult.ERROR_INVALID_NULL_HANDLE,
                type(self).__name__,
                "used after it was destroyed",
                f"a live {type(self).__name__}",
            )

    def __enter__(self: H) -> H:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()
