"""The C++ sources are formatted by clang-format."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STYLE = ROOT / "driver" / "native" / ".clang-format"
FOLDERS = (
    "driver/native/guard",
    "driver/native/interface",
    "driver/native/src",
    "emulator/engine/native",
    "tests/native/programs",
    "tools/bench",
)


@pytest.mark.quick
def test_sources_are_formatted() -> None:
    beside = str(Path(sys.executable).parent)  # of an environment that is not activated
    tool = shutil.which("clang-format", path=os.pathsep.join([beside, os.defpath, os.environ["PATH"]]))
    assert tool is not None, "no clang-format: pip install '.[test]'"
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.[ch]pp")]
    assert len(sources) > 80
    command = [tool, f"--style=file:{STYLE}", "--dry-run", "--Werror", *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
