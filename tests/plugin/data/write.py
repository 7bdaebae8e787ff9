"""Write the file of the current version: `python -m tests.plugin.data.write`, once per version.

Committed files are never rewritten: users have them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import openvino as ov
from openvino import opset13 as ops

from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.plugin import Core
from softnpu.plugin.exported import metadata
from tests.support.daemon import Daemon


def small_model() -> ov.Model:
    """Two f32 inputs [2,3], two outputs: their sum, and the first one times two."""
    left = ops.parameter([2, 3], ov.Type.f32, name="left")
    right = ops.parameter([2, 3], ov.Type.f32, name="right")
    left.output(0).set_names({"left"})
    right.output(0).set_names({"right"})
    total = ops.add(left, right)
    total.output(0).set_names({"total", "sum"})
    double = ops.multiply(left, ops.constant([2.0], ov.Type.f32, name="two"))
    double.output(0).set_names({"double"})
    return ov.Model([ops.result(total), ops.result(double)], [left, right], "small")


def write() -> Path:
    """Write the file, which must not exist yet."""
    target = Path(__file__).with_name(f"metadata_{metadata.MAJOR}_{metadata.MINOR}.blob")
    if target.exists():
        raise FileExistsError(
            f"{target} is there; expected a new version in softnpu.plugin.exported.metadata"
        )
    with tempfile.TemporaryDirectory(prefix="softnpu-") as folder:
        daemon = Daemon(DaemonSettings(socket=str(Path(folder, "npu.sock"))))
        try:
            core = Core(daemon.socket)
            core.compile_model(small_model()).export_model(target)
            core.unload_plugin()
        finally:
            daemon.close()
    return target


if __name__ == "__main__":
    print(write())
