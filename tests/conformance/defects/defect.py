"""The register of seeded defects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.conformance.python_driver import PythonDriver


@dataclass(frozen=True)
class Defect:
    """A driver that does one thing wrong, and the test (`MODULE::TEST[ID]`) that has to fail on it."""

    driver: type[PythonDriver]
    test: str

    @property
    def parameters(self) -> str:
        """The id between the brackets."""
        return self.test.partition("[")[2].removesuffix("]")


DEFECTS: dict[str, Defect] = {}
"""By the name of the class."""


def caught_by(test: str) -> Callable[[type[PythonDriver]], type[PythonDriver]]:
    """Registers a driver with a defect."""

    def register(driver: type[PythonDriver]) -> type[PythonDriver]:
        DEFECTS[driver.__name__] = Defect(driver, test)
        return driver

    return register
