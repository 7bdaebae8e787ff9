"""Build the native driver for tests: once for each state of its sources, outside the repository."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from softnpu.driver.native_library import DRIVER_NAME, ENV_NATIVE_DIR, LOADER_NAME, NativeLibrary

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "driver" / "native"
ENGINE_SOURCES = ROOT / "emulator" / "engine" / "native"
PROGRAMS = (Path(__file__).with_name("programs"), ROOT / "tools" / "bench")
_BUILD_S = 900


def build(*options: str) -> NativeLibrary:
    """Return the libraries built with these CMake options; skip the test without a compiler.

    `SOFTNPU_NATIVE_DIR` names a directory with libraries to test instead.
    """
    chosen = os.environ.get(ENV_NATIVE_DIR)
    if chosen and not options:
        return _in(Path(chosen))
    cmake, compiler = shutil.which("cmake"), shutil.which("c++") or shutil.which("g++")
    if cmake is None or compiler is None:
        pytest.skip("no cmake or C++ compiler to build the native driver with")
    root = Path(tempfile.gettempdir()) / f"softnpu-native-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    folder = root / _digest(options)
    with open(f"{folder}.lock", "w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)  # workers of one test run share the result
        if not (folder / "done").exists():
            _run(cmake, "-S", str(SOURCES), "-B", str(folder), *options)
            _run(cmake, "--build", str(folder), "-j", "2")
            (folder / "done").touch()
    return _in(folder / "lib")


def _in(folder: Path) -> NativeLibrary:
    return NativeLibrary(folder / DRIVER_NAME, folder / "loader" / LOADER_NAME)


def _digest(options: tuple[str, ...]) -> str:
    made = hashlib.sha256(repr(options).encode())
    for file in sorted((*SOURCES.rglob("*"), *ENGINE_SOURCES.iterdir())):
        if file.is_file() and SOURCES / "lib" not in file.parents:
            made.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return made.hexdigest()[:16]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def compile_program(name: str, native: NativeLibrary, folder: Path, *flags: str) -> Path:
    """Build one of the C++ programs in `PROGRAMS` as a user of Level Zero would."""
    source = next(file for place in PROGRAMS if (file := place / f"{name}.cpp").exists())
    made = folder / name
    include = f"-I{SOURCES / 'src'}"
    link = (f"-L{native.loader.parent}", f"-l:{LOADER_NAME}", "-lpthread")
    _run("c++", "-std=c++17", "-O1", include, str(source), "-o", str(made), *flags, *link)
    return made
