"""What a seeded defect is."""

from __future__ import annotations

from dataclasses import dataclass

from tests.conformance.python_driver import PythonDriver


@dataclass(frozen=True)
class Defect:
    """A driver that does one thing wrong.

    `module` is the module of the suite about it, `keyword` narrows it to the tests that run for the proof
    (as pytest's `-k`), and `expected` is the test among them that has to fail.
    """

    name: str
    driver: type[PythonDriver]
    module: str
    keyword: str
    expected: str
