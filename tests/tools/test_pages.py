"""Renders the pages, without a browser, in every branch of their templates; undefined names are errors."""

from __future__ import annotations

import os
from pathlib import Path

import jinja2
import pytest

from softnpu.tools.report import plots
from softnpu.tools.shared.failures import ToolError
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


def test_half_a_page_is_removed_and_its_file_named(tmp_path: Path, run_python: RunPython) -> None:
    code = """
    import resource
    from softnpu.tools.shared.pages import rendering
    page = Path(given["page"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    try:
        rendering.write(page, "base.html", {})
    except OSError as error:
        say([error.filename, error.strerror, page.exists()])
    """
    page = str(tmp_path / "page.html")
    assert run_python(code, page=page) == [page, "File too large", False]


def test_a_page_that_may_not_be_written_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    with pytest.raises(ToolError, match=r"--html .*page.html: no permission; expected a file"):
        rendering.check_target("--html", tmp_path / "page.html")


@pytest.mark.parametrize(
    ("names", "cut"),
    [
        (["/model.7/conv/WithoutBiases", "/model.8/conv/WithoutBiases"], ["/model.7/c…", "/model.8/c…"]),
        (["a/long/way/to/first", "a/long/way/to/other", "short"], ["…y/to/first", "…y/to/other", "short"]),
    ],
)
def test_long_names_in_a_plot_are_cut_where_they_stay_different(names: list[str], cut: list[str]) -> None:
    assert plots.cut(names, 11) == cut
