"""`softnpu report` and `softnpu compare --html`: one self-contained page, opened in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.tools.check import page as check_page
from softnpu.tools.check.findings import Finding, Findings, Kind, Place
from tests.support.cli import run_program, softnpu
from tests.support.defects import seed_defect

_needs_daemon = pytest.mark.usefixtures("cli_daemon")
_BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr",
)  # fmt: skip
_PHONE = 360
_MEASURE = """<script>
const every = (names) => [...document.querySelectorAll(names)].map((each) => each.getBoundingClientRect());
const top_of = (names) => Math.round(every(names)[0]?.top ?? -1);
const [verdict, facts, details] = [".verdict", "dl.facts", "details"].map(top_of);
for (const each of document.querySelectorAll("details")) each.open = true;
console.log("measured " + JSON.stringify({
  verdict, facts, details, page: document.documentElement.scrollWidth,
  smallest: Math.min(...every("figure div > svg:not(.graph) text").map((it) => it.height).filter((it) => it)),
  plots: every("figure div > svg:not(.graph)").filter((each) => each.width).length,
}));
</script>"""
_DARK = "--blink-settings=preferredColorScheme=0"
# attributes that could make a browser fetch something: none may lead out of the page
_REFERENCE = re.compile(r"""(?:src|href|url|@import)\s*[=(]?\s*["']?([^"')\s>]+)""")


def _references(page: str) -> set[str]:
    names = set(re.findall(r'\sid="([^"]+)"', page))
    found = {each for each in _REFERENCE.findall(page) if each != "data:,"}
    return {each for each in found if each.removeprefix("#") not in names}


def _opened(page: Path, folder: Path, *options: str) -> tuple[Path, str]:
    """Return a screenshot of the page, and the browser's console output."""
    if _BROWSER is None:
        pytest.skip("no chromium in PATH")
    picture = folder / f"{page.stem}{len(options)}.png"
    place = (f"--user-data-dir={folder / 'profile'}", f"--screenshot={picture}", "--window-size=1100,3000")
    # a request would need the missing proxy, and report it
    done = subprocess.run(
        [str(_BROWSER), *_QUIET, *place, "--proxy-server=127.0.0.1:9", *options, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line or "net::ERR" in line]
    return picture, "\n".join(said)


def _brightness(picture: Path) -> float:
    from PIL import Image

    with Image.open(picture) as opened:
        return float(np.asarray(opened.convert("L")).mean())


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = ops.parameter([1, 4, 6], ov.Type.f32, name="data")
    dense = ops.matmul(data, ops.constant(np.eye(6, dtype=np.float32) + 0.1), False, False)
    dense.set_friendly_name("dense <&>")
    path = tmp_path_factory.mktemp("report") / "good.xml"
    ov.save_model(ov.Model([ops.softmax(dense, 2)], [data], "model"), path, compress_to_fp16=False)
    return path


@_needs_daemon
def test_a_report_opens_without_a_network_and_follows_light_and_dark(good: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert softnpu("report", good, "-o", page, "-n", "2").words.startswith(f"wrote {page}")
    text = page.read_text()
    for part in (
        "Model",
        "Memory",
        "Compile and load",
        "Time by kind",
        "Time by layer",
        "Roofline",
        "On the real NPU, predicted",
        "Environment",
    ):
        assert f"<h2>{part}" in text
    assert "every number equals, bit by bit" in text
    assert "dense &lt;&amp;&gt;" in text
    assert _references(text) == set()

    light, said = _opened(page, tmp_path)
    dark, also_said = _opened(page, tmp_path, _DARK)

    assert (said, also_said) == ("", "")
    assert _brightness(dark) < 60
    assert _brightness(light) > 180


def _measured_on_a_phone(page: Path, folder: Path) -> dict[str, float]:
    """Open all parts of the page in a frame of a phone's size; return measures of elements, in pixels."""
    inner, outer = folder / "inner.html", folder / "outer.html"
    inner.write_text(page.read_text() + _MEASURE)
    outer.write_text(f'<iframe src="{inner.name}" width="{_PHONE}" height="2900" style="border: 0"></iframe>')
    said = _opened(outer, folder)[1]
    found = re.search(r"measured (\{.*?\})", said)
    assert found, said
    return dict(json.loads(found[1].replace('\\"', '"')))


@_needs_daemon
def test_a_report_is_readable_on_a_phone_its_verdict_first(good: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    softnpu("report", good, "-o", page, "-n", "2").words  # noqa: B018 - it must go well
    found = _measured_on_a_phone(page, tmp_path)
    assert found["page"] <= _PHONE
    assert found["smallest"] >= 9
    assert found["plots"] == 3
    assert found["verdict"] < found["facts"] < found["details"] < 800


def test_findings_are_readable_on_a_phone(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    frames = tuple(f"/opt/{'a_long_folder/' * 9}app.py:{line} {'a_function' * 9}" for line in range(3))
    places = (Place("zeCommandListAppendMemoryCopy reads bytes 0 to 4,095", "app.py (17)", frames),)
    finding = Finding(Kind.RACE, "two queues use the same bytes", places, "wait in between")
    check_page.write_page(page, Findings({finding.key: finding}), 0, "app.py " + "--option=value " * 20)
    found = _measured_on_a_phone(page, tmp_path)
    assert found["page"] <= _PHONE
    assert found["verdict"] < found["details"] < 800
    assert _references(page.read_text()) == set()


@_needs_daemon
def test_a_comparison_is_a_page(good: Path, tmp_path: Path) -> None:
    bad, page = tmp_path / "bad.xml", tmp_path / "compared.html"
    model = seed_defect(ov.Core().read_model(good), "constant", "dense <&>")
    ov.save_model(model, bad, compress_to_fp16=False)
    assert softnpu("compare", bad, "--against", good, "--layers", "--html", page).code == 1
    text = page.read_text()
    assert "out of tolerance alone" in text
    assert 'class="bad">causes<' in text
    assert _references(text) == set()
    assert _opened(page, tmp_path)[1] == ""


def test_a_page_that_fetches_something_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "asking.html"
    page.write_text('<img src="http://example.invalid/a.png"><script>missing()</script>')
    assert _references(page.read_text()) == {"http://example.invalid/a.png"}
    said = _opened(page, tmp_path)[1]
    assert "missing is not defined" in said


def test_a_missing_library_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nsys.modules['jinja2'] = None\nfrom softnpu.tools.start import main\nmain()\n"
    )
    done = run_program(program, "report", "model.xml")
    assert done.complaint == (
        "--output: no module jinja2; expected it installed. Install it with: pip install 'softnpu[report]'"
    )
