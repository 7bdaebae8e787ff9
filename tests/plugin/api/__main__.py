"""Print how many of OpenVINO's behaviours the plugin has: `python -m tests.plugin.api`, with a daemon."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import openvino

import softnpu.plugin
from tests.plugin.api.table import MISSING, Side, behaviours, difference


def main() -> int:
    """Compare all behaviours; return 1 if one differs."""
    with tempfile.TemporaryDirectory() as folder:
        theirs = Side(openvino, "CPU", Path(folder))
        ours = Side(softnpu.plugin, "NPU", Path(folder))
        found = {name: difference(each, theirs, ours) for name, each in behaviours().items()}
    different = {name: text for name, text in found.items() if text}
    for name, text in (different | MISSING).items():
        print(f"{name}: {text}")
    print(
        f"{len(found) - len(different)} of {len(found) + len(MISSING)} as openvino {openvino.__version__};"
        f" {len(different)} differ, {len(MISSING)} missing"
    )
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
