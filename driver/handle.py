"""What all handle classes share: an owner, one destruction, and loud use after it."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

from softnpu.driver.errors import error
from softnpu.emulator.interface.result import ZeResult

H = TypeVar("H", bound="Handle")


class Handle:
    """Base of every Level Zero object. `destroy` is harmless when repeated; use after it raises."""

    _destroyed = False

    def destroy(self) -> None:
        """Gives the object back to the device."""
        if not self._destroyed:
            self._destroyed = True
            self._release()

    def check(self, call: str) -> None:
        """Raises `ZeError` with ERROR_INVALID_NULL_HANDLE after `destroy`."""
        if self._destroyed:
            raise error(
                call,
                ZeResult.ERROR_INVALID_NULL_HANDLE,
                type(self).__name__,
                "used after it was destroyed",
                f"a live {type(self).__name__}",
            )

    def _release(self) -> None:
        raise NotImplementedError

    def __enter__(self: H) -> H:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()
