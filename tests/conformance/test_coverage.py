"""The table of facts and tests is true: every test in it exists, and no section or module is missing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conformance.behaviour import test_errors
from tests.conformance.coverage import FACTS, Fact
from tests.conformance.defects import DEFECTS

BEHAVIOUR = Path(__file__).parent / "behaviour"
SECTIONS = {"7.1", "7.2", "7.3", "7.4", "7.5", "7.6", "7.7", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "2.2"}


def names_of(module: Path) -> set[str]:
    """The names of the tests in a module."""
    tree = ast.parse(module.read_text())
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {name for name in functions if name.startswith("test_")}


KNOWN = {module.stem: names_of(module) for module in BEHAVIOUR.glob("test_*.py")}


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact.section} {fact.statement}")
def test_tests_of_a_fact_exist(fact: Fact) -> None:
    assert fact.tests
    for test in fact.tests:
        module, _, name = test.partition("::")
        assert name in KNOWN[module]


def test_no_section_is_missing() -> None:
    assert {fact.section for fact in FACTS} >= SECTIONS


def test_no_module_is_missing() -> None:
    assert {test.partition("::")[0] for fact in FACTS for test in fact.tests} == set(KNOWN)


def test_names_of_the_error_rows_are_distinct() -> None:
    names = [row.name for row in test_errors.ROWS]
    assert len(set(names)) == len(names)


def test_at_least_ten_defects_are_seeded() -> None:
    assert len(DEFECTS) >= 10


@pytest.mark.parametrize("name", DEFECTS)
def test_expected_test_of_a_defect_exists(name: str) -> None:
    defect = DEFECTS[name]
    assert defect.expected.partition("[")[0] in KNOWN[Path(defect.module).stem]
