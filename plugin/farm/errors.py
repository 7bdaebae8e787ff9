"""Errors of a farm: those that a person has to fix, and those that a retry fixes.

Ray retries when a worker has died, and only then, unless a program says otherwise. So a worker whose devices
are gone exits, with the reason on stderr: Ray's own options limit the retries, and an error of the program
itself is never retried.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from softnpu.driver import ZeError, ZeResult

_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later
_LOST_IN_TEXT = ("ERROR_DEVICE_LOST", "0x70000001")
"""How OpenVINO's own plugin reports it: a RuntimeError with this text."""


class FarmError(RuntimeError):
    """A farm cannot satisfy a request; retrying does not help."""

    def __init__(self, object: str, *, found: str, expected: str, hint: str = "") -> None:
        self.object, self.found, self.expected, self.hint = object, found, expected, hint
        text = f"{object}: {found}; expected {expected}"
        super().__init__(f"{text}. {hint[:1].upper()}{hint[1:]}" if hint else text)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle all arguments: Python would call the class with the text alone."""
        return _remade, (type(self), self.object, self.found, self.expected, self.hint)


class BatchError(FarmError, ValueError):
    """A batch does not fit the model."""


def _remade(kind: type[FarmError], object: str, found: str, expected: str, hint: str) -> FarmError:
    return kind(object, found=found, expected=expected, hint=hint)


def is_loss(failure: BaseException) -> bool:
    """Return whether an exception, or its cause, says that devices or their daemon are gone."""
    seen: BaseException | None = failure
    while seen is not None:
        if isinstance(seen, ZeError):
            return seen.result == ZeResult.ERROR_DEVICE_LOST
        if isinstance(seen, RuntimeError) and any(text in str(seen) for text in _LOST_IN_TEXT):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def abandon_worker(reason: object) -> NoReturn:
    """End this worker, so that Ray retries its work in another one."""
    text = " ".join(str(reason).split())
    print(
        f"softnpu.farm: worker {os.getpid()} ends, its devices are gone: {text}", file=sys.stderr, flush=True
    )
    sys.stdout.flush()
    os._exit(_EXIT_CODE)
