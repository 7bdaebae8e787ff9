"""The extension of OpenVINO that rounds to f16: built from `rounding.cpp` for the OpenVINO that is installed.

An extension fits one build of OpenVINO only: classes of C++ change between releases. So the name of the file
is made of the release and the source, and another one is never loaded. It lies in the package if it was built
with it, else in the user's cache, where the compiler worker builds it when the first model asks for f16.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from blake3 import blake3

from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult

SOURCE: Final = Path(__file__).with_name("rounding.cpp")
DIRECTORY: Final = "SOFTNPU_EXTENSION_DIR"
_PACKAGED: Final = Path(__file__).with_name("lib")
_COMPILERS: Final = ("c++", "g++", "clang++")
_FLAGS: Final = (
    "-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra",
    # as OpenVINOTargets.cmake of its wheels says
    "-D_GLIBCXX_USE_CXX11_ABI=1", "-DOV_THREAD=OV_THREAD_TBB_ADAPTIVE",
)  # fmt: skip
_LONGEST_S: Final = 300.0
_POLL_S: Final = 0.2
_TEXT: Final = 300


def find() -> Path:
    """The library for the installed OpenVINO. Refuses with `ERROR_UNSUPPORTED_FEATURE` if there is none."""
    for folder in _folders():
        path = folder / name()
        if path.is_file() and path.stat().st_uid in (0, os.getuid(), _PACKAGED.parent.stat().st_uid):
            return path
    raise _missing("it is not built for this OpenVINO", "compile a model for f16, which builds it")


def ensure(advance: Callable[[], None]) -> Path:
    """The library, built if it is missing. `advance` is called now and then meanwhile.

    Refuses with `ERROR_UNSUPPORTED_FEATURE` and the next step what cannot be built.
    """
    with contextlib.suppress(Refused):
        return find()
    return _build(_user_folder() / name(), advance)


@functools.cache
def name() -> str:
    """The name of the file, which no other release and no other source has."""
    import openvino as ov

    identity = blake3(SOURCE.read_bytes())
    identity.update(" ".join((ov.get_version(), *_FLAGS, *(path.name for path in _libraries()))).encode())
    return f"libsoftnpu_rounding-{identity.hexdigest(8)}.so"


def _folders() -> Iterator[Path]:
    yield _PACKAGED
    with contextlib.suppress(Refused):
        yield _user_folder()


def _user_folder() -> Path:
    chosen = os.environ.get(DIRECTORY)
    if chosen:
        return Path(chosen)
    import platformdirs

    try:
        return platformdirs.user_cache_path("softnpu") / "extensions"
    except (RuntimeError, KeyError) as error:  # no HOME, and no entry in passwd
        raise _missing(f"there is no folder for it: {error}", f"set {DIRECTORY}") from error


def _package() -> Path:
    import openvino as ov

    return Path(ov.__file__).parent


def _libraries() -> list[Path]:
    """What the extension is linked with: the runtime, and the threads that it uses."""
    folder = _package() / "libs"
    return [path for pattern in ("libopenvino.so.*", "libtbb.so.*") for path in sorted(folder.glob(pattern))]


def _build(target: Path, advance: Callable[[], None]) -> Path:
    compiler = _compiler()
    headers = _package() / "include"
    if not (headers / "openvino" / "op" / "op.hpp").is_file() or len(_libraries()) < 2:
        hint = "install OpenVINO from PyPI: pip install openvino"
        raise _missing(f"no headers of OpenVINO in {headers}", hint)
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = tempfile.mkdtemp(prefix=".build-", dir=target.parent)
    except OSError as error:
        raise _missing(f"{target.parent} cannot be written: {error.strerror}", f"set {DIRECTORY}") from error
    try:
        made = Path(folder) / target.name
        command = [compiler, *_FLAGS, "-isystem", headers, SOURCE, "-o", made, *_libraries()]
        _run([str(each) for each in command], Path(folder), advance)
        os.replace(made, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return target


def _run(command: list[str], folder: Path, advance: Callable[[], None]) -> None:
    output = folder / "output"
    end = time.monotonic() + _LONGEST_S
    with (
        open(output, "wb") as file,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=folder) as process,
    ):
        try:
            while process.poll() is None and time.monotonic() < end:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
                advance()
        finally:
            process.kill()
    if process.returncode:
        errors = [line for line in output.read_text(errors="replace").splitlines() if "error" in line]
        raise _missing(
            f"{command[0]} ended with {process.returncode}: {' '.join(errors)[:_TEXT]}",
            "install a newer g++, or set CXX",
        )


def _compiler() -> str:
    chosen = os.environ.get("CXX", "")
    for candidate in (chosen,) if chosen else _COMPILERS:
        found = shutil.which(candidate)
        if found:
            return found
    found = f"no {chosen}, which CXX names" if chosen else f"none of {', '.join(_COMPILERS)}"
    raise _missing(found, "install g++ (Debian: apt install g++, Fedora: dnf install gcc-c++)")


def _missing(found: str, hint: str) -> Refused:
    return Refused(
        ErrorInfo(
            result=ZeResult.ERROR_UNSUPPORTED_FEATURE,
            object="f16, the extension of OpenVINO that rounds",
            found=found,
            expected="the extension, or a C++17 compiler to build it",
            hint=hint,
        )
    )
