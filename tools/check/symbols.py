"""Source lines of addresses in C++ programs, from their debug information, as far as they have any."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_ADDRESS: Final = re.compile(r"(/.+)\+(0x[0-9a-f]+) (.*)")
_DEADLINE_S: Final = 60.0


def names_of(frames: Iterable[str]) -> dict[str, str]:
    """Return `file:line function` for frames `module+0xoffset name` of modules with debug information."""
    modules: dict[str, dict[str, str]] = defaultdict(dict)
    for frame in frames:
        if (found := _ADDRESS.fullmatch(frame)) is not None:
            modules[found[1]][found[2]] = frame
    names: dict[str, str] = {}
    tool = shutil.which("addr2line")
    for module, offsets in modules.items() if tool is not None else ():
        if not Path(module).is_file():
            continue
        command = [str(tool), "--demangle", "--functions", "--exe", module, *offsets]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
        except subprocess.TimeoutExpired:
            continue  # module and offset have to do
        lines = done.stdout.splitlines()
        for frame, function, place in zip(offsets.values(), lines[::2], lines[1::2], strict=False):
            if not place.startswith("??") and not place.endswith((":0", ":?")):
                short = function.replace("(anonymous namespace)::", "").split("(")[0]
                names[frame] = f"{place.split(' (')[0]} {short}"
    return names
