"""The C++ sources are formatted by clang-format."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STYLE = ROOT / "driver" / "native" / ".clang-format"
FOLDERS = (
    "driver/native/guard",
    "driver/native/src",
    "emulator/engine/native",
    "tests/native/programs",
    "tools/bench",
)


@pytest.mark.quick
def test_sources_are_formatted() -> None:
    tool = shutil.which("clang-format")
    if tool is None:
        pytest.skip("clang-format is not installed")
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.[ch]pp")]
    assert len(sources) > 100
    command = [tool, f"--style=file:{STYLE}", "--dry-run", "--Werror", *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
