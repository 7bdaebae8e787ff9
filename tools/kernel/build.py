"""Build a kernel from C, C++ or Zig with zig, which comes from PyPI and needs nothing else."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Final

from softnpu.tools.shared.failures import ToolError

FOLDER: Final = Path(__file__).parents[1] / "examples" / "kernels"
"""The header, the template and the examples."""
HEADERS: Final = ("softnpu_kernel.h", "softnpu_math.h")
TEMPLATE: Final = FOLDER / "template.c"
FLAGS: Final = (
    "-target", "wasm32-freestanding", "-O3", "-msimd128", "-mrelaxed-simd", "-mbulk-memory",
    "-ffp-contract=off", "-Wall", "-Wl,--no-entry", "-Wl,-z,stack-size=65536", "-Wl,--strip-debug",
)  # fmt: skip
"""docs/kernels.md lists them. The names of functions stay: a trap's place has them."""
ZIG_FLAGS: Final = (
    "-target", "wasm32-freestanding", "-O", "ReleaseFast", "-fno-entry", "-rdynamic", "--stack", "65536",
    "-mcpu=generic+simd128+relaxed_simd+bulk_memory",
)  # fmt: skip
_BUILD_S: Final = 300.0


def build(source: Path, target: Path) -> None:
    """Compile a source to a module; raise `ToolError` with the compiler's first error."""
    if not source.is_file():
        raise ToolError(str(source), found="no such file", expected="a source in C, C++ or Zig")
    if importlib.util.find_spec("ziglang") is None:
        raise ToolError(
            "compiler",
            found="no package ziglang",
            expected="it, or your own compiler with the flags in docs/kernels.md",
            hint=f"{sys.executable} -m pip install ziglang",
        )
    if source.suffix == ".zig":
        options = ["build-exe", str(source), *ZIG_FLAGS, f"-femit-bin={target}"]
    else:
        options = ["cc", *FLAGS, f"-I{FOLDER}", "-o", str(target), str(source)]
    line = [sys.executable, "-m", "ziglang", *options]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    except subprocess.TimeoutExpired:
        raise ToolError(str(source), found=f"not built after {_BUILD_S:g} s", expected="a module") from None
    if done.returncode:
        errors = [each for each in done.stderr.splitlines() if "error:" in each] or done.stderr.splitlines()
        found = errors[0] if errors else f"the compiler ended with code {done.returncode}"
        lacks = "there is no C library: docs/kernels.md names the functions that zig adds"
        hint = lacks if "undefined symbol" in found else ""
        raise ToolError(str(source), found=found, expected="a source that compiles", hint=hint)


def begin(target: Path) -> list[Path]:
    """Write the template, and beside it the headers that are not there; return what was written."""
    if target.suffix not in (".c", ".cpp", ".cc"):
        raise ToolError(str(target), found=f"ending {target.suffix!r}", expected=".c or .cpp")
    files = {target: TEMPLATE, **{target.with_name(name): FOLDER / name for name in HEADERS}}
    if target.exists():
        raise ToolError(str(target), found="a file of that name", expected="a new one")
    written = [path for path in files if not path.exists()]
    for path in written:
        path.write_text(files[path].read_text())
    return written
