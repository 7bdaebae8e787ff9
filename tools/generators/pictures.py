"""`python -m softnpu.tools.generators.pictures ROOT` makes the pictures of the documents, from the programs.

It takes two minutes, as `softnpu top` shows one, and needs chromium, pillow (of matplotlib) and textual.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from softnpu.tools.demo.digits import model_path
from softnpu.tools.shared.private_daemon import private_daemon

HEADINGS: Final = "headings"
"""The text in the picture of a report: what its page consisted of."""
_SCREEN: Final = (92, 16)
_PROGRAM: Final = """
import math, sys, time
import numpy as np
import openvino as ov
from openvino import opset13 as ops
from softnpu.plugin import Core

data = ops.parameter([256, 1024], ov.Type.f32)
product = ops.matmul(data, ops.constant(np.ones((1024, 1024), np.float32)), False, False)
model = ov.Model([ops.relu(product)], [data], sys.argv[2])
request = Core(sys.argv[1]).compile_model(model, "NPU").create_infer_request()
while True:
    now = time.monotonic()
    while time.monotonic() < now + float(sys.argv[3]) * (0.2 + abs(math.sin(now / 11))):
        request.infer()
    time.sleep(now + 1 - time.monotonic())
"""
_PROGRAMS: Final = {"camera.py": ("detector", "0.4"), "second_service.py": ("denoiser", "0.15")}
"""The model of each, and its share of a second."""
_WINDOW: Final = "1100,1250"
_OPENED: Final = ("Model", "Time by kind of layer")


def headings(root: Path) -> str:
    """Return the parts of a report's page, as its template has them."""
    template = (root / "tools" / "shared" / "pages" / "report.html").read_text()
    return ", ".join(part.strip() for part in re.findall("<h2>([A-Za-z ]+)", template))


@contextmanager
def _programs(folder: Path, socket: Path) -> Iterator[None]:
    running = []
    try:
        for name, arguments in _PROGRAMS.items():
            (folder / name).write_text(_PROGRAM)
            line = [sys.executable, "-P", str(folder / name), str(socket), *arguments]
            running.append(subprocess.Popen(line))
        yield
    finally:
        for program in running:
            program.kill()
            program.wait()


async def _screen(socket: Path) -> str:
    """Return `softnpu top` when it has seen a minute, as SVG."""
    from softnpu.tools.top.app import TopApp
    from softnpu.tools.top.history import SPAN_S

    app = TopApp(socket, 1.0, "dark")
    async with app.run_test(size=_SCREEN) as pilot:
        await pilot.pause(SPAN_S + 5)
        return app.export_screenshot(title="softnpu top")


def write_top(root: Path) -> None:
    """Write docs/top.svg: two devices, and two programs on one of them."""
    with (
        tempfile.TemporaryDirectory() as folder,
        private_daemon(devices=("4000", "3720")) as daemon,
        _programs(Path(folder), daemon.socket),
    ):
        picture = asyncio.run(_screen(daemon.socket))
    lines = (line.rstrip() for line in picture.splitlines())
    (root / "docs" / "top.svg").write_text("\n".join(lines) + "\n")


def write_report(root: Path) -> None:
    """Write docs/images/report.png: a report on the digits, with two parts unfolded."""
    from PIL import Image, PngImagePlugin

    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with tempfile.TemporaryDirectory() as name, private_daemon(devices=("4000",)) as daemon:
        page, shot = Path(name, "report.html"), Path(name, "shot.png")
        softnpu = [sys.executable, "-P", "-m", "softnpu.tools.cli", "report", str(model_path())]
        subprocess.run([*softnpu, "-o", page, "--socket", str(daemon.socket)], check=True)
        text = page.read_text()
        for part in _OPENED:
            folded = f'<details class="part"><summary><h2>{part}'
            assert text.count(folded) == 1, part
            text = text.replace(folded, folded.replace("<details", "<details open"))
        page.write_text(text)
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
        places = (f"--user-data-dir={name}/profile", f"--screenshot={shot}", f"--window-size={_WINDOW}")
        subprocess.run(
            [browser, *options, *places, page.as_uri()], check=True, capture_output=True, timeout=120
        )
        notes = PngImagePlugin.PngInfo()
        notes.add_text(HEADINGS, headings(root))
        with Image.open(shot) as taken:
            picture = taken.convert("RGB").quantize(64)
            picture.save(root / "docs" / "images" / "report.png", optimize=True, pnginfo=notes)


def main(arguments: list[str]) -> None:
    """Write the pictures of the repository `arguments[0]`."""
    write_report(Path(arguments[0]))
    write_top(Path(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
