"""What goes wrong on a farm: what a person has to correct, and what another try mends.

Ray tries again when a worker has died, and only then, unless a program says otherwise. So a worker whose
devices are gone dies, with the reason on stderr: Ray's own options decide how often work is tried again, and
an error of the program itself is never repeated.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from softnpu.driver import ZeError, ZeResult

_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later
_LOST_IN_TEXT = ("ERROR_DEVICE_LOST", "0x70000001")
"""How OpenVINO's own plugin words it: its error is a RuntimeError with this text."""


class FarmError(RuntimeError):
    """A farm cannot do what was asked for; trying again does not help."""

    def __init__(self, object: str, *, found: str, expected: str, hint: str = "") -> None:
        self.object, self.found, self.expected, self.hint = object, found, expected, hint
        text = f"{object}: {found}; expected {expected}"
        super().__init__(f"{text}. {hint[:1].upper()}{hint[1:]}" if hint else text)

    def __reduce__(self) -> tuple[object, ...]:
        """Errors travel between processes: Python would call the class with the text alone."""
        return _remade, (type(self), self.object, self.found, self.expected, self.hint)


class BatchError(FarmError, ValueError):
    """A batch does not fit the model."""


def _remade(kind: type[FarmError], object: str, found: str, expected: str, hint: str) -> FarmError:
    return kind(object, found=found, expected=expected, hint=hint)


def is_loss(failure: BaseException) -> bool:
    """Whether an exception, or what caused it, says that devices or their daemon are gone."""
    seen: BaseException | None = failure
    while seen is not None:
        if isinstance(seen, ZeError):
            return seen.result == ZeResult.ERROR_DEVICE_LOST
        if isinstance(seen, RuntimeError) and any(text in str(seen) for text in _LOST_IN_TEXT):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def abandon_worker(reason: object) -> NoReturn:
    """End this worker, so that Ray tries its work again in another one."""
    text = " ".join(str(reason).split())
    print(
        f"softnpu.farm: worker {os.getpid()} ends, its devices are gone: {text}", file=sys.stderr, flush=True
    )
    sys.stdout.flush()
    os._exit(_EXIT_CODE)
