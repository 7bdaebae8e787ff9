"""The OpenVINO extension that rounds to f16: built from `rounding.cpp` for the installed OpenVINO.

An extension fits only one build of OpenVINO: C++ classes change between releases. So the file is named after
the release and the source, and no other one is ever loaded. It lies in the user's cache, where the compiler
worker builds it when the first model requests f16.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from blake3 import blake3

from softnpu.emulator.common import file_ownership
from softnpu.emulator.interface.environment import user_cache
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult

SOURCE: Final = Path(__file__).with_name("rounding.cpp")
DIRECTORY: Final = "SOFTNPU_EXTENSION_DIR"
"""Directory of the compiled f16 extension of OpenVINO, which is built at first use."""
PATTERN: Final = "libsoftnpu_rounding-*.so"
SCRATCH: Final = ".build-"
"""Prefix of build folders; a killed compiler worker leaves its own behind."""
_COMPILERS: Final = ("c++", "g++", "clang++")
_FLAGS: Final = (
    "-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra",
    # as in OpenVINOTargets.cmake of its wheels
    "-D_GLIBCXX_USE_CXX11_ABI=1", "-DOV_THREAD=OV_THREAD_TBB_ADAPTIVE",
)  # fmt: skip
_LONGEST_S: Final = 300.0
_POLL_S: Final = 0.2
_TEXT: Final = 300


def find() -> Path:
    """Return the library for the installed OpenVINO. Refuses with `ERROR_UNSUPPORTED_FEATURE` without one."""
    os.close(_opened())
    return folder() / name()


@contextlib.contextmanager
def opened() -> Iterator[str]:
    """Yield a path that loads the checked library, even if its name changes; refuse as `find`."""
    fd = _opened()
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _opened() -> int:
    """Return a descriptor of the library, which only this user and root can have written."""
    path = folder() / name()
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _absent(path, error) from error
    try:
        info = os.fstat(directory)
        if info.st_uid not in (os.geteuid(), file_ownership.ROOT):
            raise _untrusted(path.parent, f"it belongs to user {info.st_uid}")
        if file_ownership.others_write(directory, info):
            raise _untrusted(path.parent, f"others may write it (mode {stat.S_IMODE(info.st_mode):o})")
        fd = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        raise _absent(path, error) from error
    finally:
        os.close(directory)
    reason = file_ownership.distrust(fd)
    if reason:
        os.close(fd)
        raise _untrusted(path, reason)
    return fd


def _absent(path: Path, error: OSError) -> Refused:
    hint = "compile a model for f16, which builds it"
    return _missing(f"no {path} for this OpenVINO: {error.strerror}", hint)


def _untrusted(path: Path, reason: str) -> Refused:
    return _missing(f"{path}: {reason}", f"correct or remove it, or set {DIRECTORY}")


def ensure(advance: Callable[[], None]) -> Path:
    """Return the library, building it if it is missing. `advance` is called now and then meanwhile.

    Refuses with `ERROR_UNSUPPORTED_FEATURE` and the next step if it cannot be built.
    """
    with contextlib.suppress(Refused):
        return find()
    _build(folder() / name(), advance)
    return find()


@functools.cache
def name() -> str:
    """Return the file name, unique to the release and the source."""
    import openvino as ov

    identity = blake3(SOURCE.read_bytes())
    identity.update(" ".join((ov.get_version(), *_FLAGS, *(path.name for path in _libraries()))).encode())
    return PATTERN.replace("*", identity.hexdigest(8))


def folder() -> Path:
    """Return the folder of extensions: SOFTNPU_EXTENSION_DIR, else in the user's cache."""
    chosen = os.environ.get(DIRECTORY)
    if chosen:
        return Path(chosen)
    path = user_cache("extensions")
    if not path:
        raise _missing("no folder for it: neither XDG_CACHE_HOME nor HOME is set", f"set {DIRECTORY}")
    return Path(path)


def _package() -> Path:
    import openvino as ov

    return Path(ov.__file__).parent


def _libraries() -> list[Path]:
    """Return the link libraries of the extension: the runtime, and its threading library."""
    libs = _package() / "libs"
    return [path for pattern in ("libopenvino.so.*", "libtbb.so.*") for path in sorted(libs.glob(pattern))]


def _build(target: Path, advance: Callable[[], None]) -> Path:
    import shutil  # late: engines and workers import this module, and mostly build nothing
    import tempfile

    command = compiler()
    headers = _package() / "include"
    if not (headers / "openvino" / "op" / "op.hpp").is_file() or len(_libraries()) < 2:
        hint = "install OpenVINO from PyPI: pip install openvino"
        raise _missing(f"no headers of OpenVINO in {headers}", hint)
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        scratch = tempfile.mkdtemp(prefix=SCRATCH, dir=target.parent)
    except OSError as error:
        raise _missing(f"{target.parent} cannot be written: {error.strerror}", f"set {DIRECTORY}") from error
    try:
        made = Path(scratch) / target.name
        arguments = [command, *_FLAGS, "-isystem", headers, SOURCE, "-o", made, *_libraries()]
        _run([str(each) for each in arguments], Path(scratch), advance)
        made.chmod(0o600)  # regardless of a program's umask
        os.replace(made, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _run(command: list[str], scratch: Path, advance: Callable[[], None]) -> None:
    output = scratch / "output"
    end = time.monotonic() + _LONGEST_S
    with (
        open(output, "wb") as file,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=scratch) as process,
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


def compiler() -> str:
    """Return the C++ compiler: CXX, or the usual one. Refuses with `ERROR_UNSUPPORTED_FEATURE`."""
    import shutil

    chosen = os.environ.get("CXX", "")
    for candidate in (chosen,) if chosen else _COMPILERS:
        path = shutil.which(candidate)
        if path:
            return path
    missing = f"no {chosen}, which CXX names" if chosen else f"none of {', '.join(_COMPILERS)}"
    raise _missing(missing, "install g++ (Debian: apt install g++, Fedora: dnf install gcc-c++)")


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
