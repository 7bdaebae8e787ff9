"""The registry of seeded defects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.conformance.python_driver import PythonDriver


@dataclass(frozen=True)
class Defect:
    """A driver with one defect, and the test (`MODULE::TEST[ID]`) that must fail on it."""

    driver: type[PythonDriver]
    test: str

    @property
    def parameters(self) -> str:
        """The id in brackets."""
        return self.test.partition("[")[2].removesuffix("]")


DEFECTS: dict[str, Defect] = {}
"""By the name of the class or function."""


def caught_by(test: str) -> Callable[[type[PythonDriver]], type[PythonDriver]]:
    """Register a driver with a defect."""

    def register(driver: type[PythonDriver]) -> type[PythonDriver]:
        DEFECTS[driver.__name__] = Defect(driver, test)
        return driver

    return register


def wrong_call(test: str, *calls: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a driver with some calls replaced by a function of the driver, the right call, and arguments.

    `driver.noted` is a dictionary for the defect.
    """

    def register(wrong: Callable[..., Any]) -> Callable[..., Any]:
        def method(call: str) -> Callable[..., Any]:
            def replaced(driver: PythonDriver, *arguments: Any, **more: Any) -> Any:
                return wrong(driver, functools.partial(right, driver), *arguments, **more)

            right: Callable[..., Any] = getattr(PythonDriver, call)
            return functools.wraps(right)(replaced)

        methods: dict[str, Any] = {call: method(call) for call in calls}
        noted = property(lambda driver: driver.__dict__.setdefault("_noted", {}))
        driver = type(wrong.__name__, (PythonDriver,), {"__doc__": wrong.__doc__, "noted": noted, **methods})
        DEFECTS[wrong.__name__] = Defect(driver, test)
        return wrong

    return register
