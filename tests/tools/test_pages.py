"""Renders the pages, without a browser, in every branch of their templates; undefined names are errors."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from softnpu.tools.shared.pages import rendering
from tests.conftest import RunPython
from tests.support.templates import noting
from tests.tools import page_cases

_FOLDER = Path(rendering.__file__).parent
_SHARED = {"base.html", "comparison.html"}


def test_every_page_has_cases() -> None:
    assert {path.name for path in _FOLDER.glob("*.html")} == {*page_cases.CASES, *_SHARED}


@pytest.mark.usefixtures("cli_daemon")
@pytest.mark.parametrize("template", page_cases.CASES)
def test_every_branch_of_a_page_is_rendered(template: str, tmp_path: Path, run_python: RunPython) -> None:
    code = """
    from tests.tools import page_cases
    say(page_cases.left_out(given["template"], Path(given["page"])))
    """
    left_out = run_python(code, deadline_s=120.0, template=template, page=str(tmp_path / "page.html"))
    # compare.html alone covers comparison.html
    assert [each for each in left_out if template == "compare.html" or "comparison.html" not in each] == []


def test_an_undefined_name_in_a_page_is_an_error() -> None:
    values = {"machine": "", "missed": [], "judged": 0}
    with noting() as branches, pytest.raises(jinja2.UndefinedError, match="'when' is undefined"):
        rendering.render("bench.html", values, number=str)
    assert any(each.endswith(" if") for each in branches.left_out), "what was not rendered is told"
