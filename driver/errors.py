"""The one exception of the driver: a Level Zero result with everything a person needs to act on it."""

from __future__ import annotations

from softnpu.emulator.interface.result import Fault, ZeResult


class ZeError(Exception):
    """A call ended with a result other than SUCCESS or NOT_READY.

    `result` is the Level Zero code (an int if this version does not know its name), `call` the call that
    was made, `fault` the object, the value found, what was expected and the next step.
    """

    def __init__(self, call: str, fault: Fault) -> None:
        super().__init__(call, fault)
        self.call = call
        self.fault = fault

    @property
    def result(self) -> int:
        try:
            return ZeResult(self.fault.result)
        except ValueError:
            return self.fault.result

    def __str__(self) -> str:
        return f"{self.call}: {self.fault.name} ({self.fault.result:#x}): {self.fault}"


def error(
    call: str, result: ZeResult, object: str, found: str, expected: str = "", hint: str = ""
) -> ZeError:
    """Builds the exception of a check that the driver itself makes."""
    return ZeError(call, Fault(result=int(result), object=object, found=found, expected=expected, hint=hint))
