"""List and check what is inside of packages: `python packaging/contents.py dist/*`.

The exit code is 1 when something is wrong. A wheel has the native driver, types and no tests, and its tag
says what the library needs.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

DRIVERS = (
    "softnpu/driver/native/lib/libze_softnpu.so",
    "softnpu/driver/native/lib/loader/libze_loader.so.1",
    "softnpu/driver/native/lib/engine/libsoftnpu_engine.so",
    "softnpu/driver/native/lib/libsoftnpu_guard.so",
    "softnpu/driver/native/lib/libsoftnpu_submit.so",
)
PACKAGES = ("emulator", "driver", "plugin", "tools", "farm")
SOURCES = (
    "pyproject.toml",
    "LICENSE",
    "README.md",
    "driver/native/CMakeLists.txt",
    "driver/native/interface/schema.hpp",
)
BASE = {"blake3", "msgspec", "numpy", "openvino", "psutil"}
_VERSIONS = re.compile(rb"\0(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)*)(?=\0)")
_TAG = re.compile(r"-py3-none-(?P<system>manylinux_(?P<major>\d+)_(?P<minor>\d+)|linux)_\w+\.whl$")
_FORBIDDEN = re.compile(r"(^|/)(tests?|__pycache__|\.git|\.github|\.ci|\.venv)/|\.(pyc|o)$|conftest\.py$")


def main(packages: list[str]) -> int:
    """Check packages; 1 if something is wrong with one, or if there are none."""
    wrong = 0
    for name in packages:
        path = Path(name)
        check = _check_wheel if path.suffix == ".whl" else _check_sdist
        found = list(check(path))
        for problem in found:
            print(f"{path.name}: {problem}", file=sys.stderr)
        wrong += len(found)
    return 1 if wrong or not packages else 0


def _check_wheel(path: Path) -> Iterator[str]:
    """What is wrong with a wheel; prints what it has."""
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        _print_summary(path, names)
        yield from _check_names(names)
        for package in PACKAGES:
            if f"softnpu/{package}/py.typed" not in names:
                yield f"softnpu/{package}: no py.typed; expected a typed package"
        for name in DRIVERS:
            if name in names:
                yield from _check_driver(path, name, wheel.read(name))
            else:
                yield f"{name}: missing; expected the native driver"
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        yield from _check_requirements(wheel.read(metadata).decode())


def _check_sdist(path: Path) -> Iterator[str]:
    """What is wrong with a source package; prints what it has."""
    with tarfile.open(path) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    _print_summary(path, names)
    yield from _check_names(names)
    for name in SOURCES:
        if name not in names:
            yield f"{name}: missing"
    yield from (f"{name}: a built library; expected sources" for name in names if ".so" in name)


def _check_names(names: list[str]) -> Iterator[str]:
    for name in filter(_FORBIDDEN.search, names):
        yield f"{name}: expected no tests and nothing that is made"


def _check_driver(path: Path, name: str, library: bytes) -> Iterator[str]:
    """Check that the library needs no C++ library, and no C library newer than the tag says."""
    needed: dict[str, set[tuple[int, ...]]] = {}
    for kind, version in _VERSIONS.findall(library):
        needed.setdefault(kind.decode(), set()).add(tuple(map(int, version.split(b"."))))
    newest = max(needed.get("GLIBC", {(0,)}))
    print(f"  {name}: needs glibc {'.'.join(map(str, newest))}")
    if b"\0libstdc++.so" in library:
        yield f"{name}: needs libstdc++.so; expected it linked statically"
    tag = _TAG.search(path.name)
    if tag is None:
        yield "the tag of the wheel: expected py3-none-manylinux_X_Y or py3-none-linux"
    elif tag["major"] and newest > (int(tag["major"]), int(tag["minor"])):
        yield f"{name}: needs glibc {'.'.join(map(str, newest))}; expected at most that of {tag['system']}"


def _check_requirements(metadata: str) -> Iterator[str]:
    lines = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    base = {re.split(r"[^\w-]", line.split(": ")[1])[0] for line in lines if "extra ==" not in line}
    print(f"  requires {', '.join(sorted(base))}")
    if base != BASE:
        yield f"requirements {sorted(base)}; expected {sorted(BASE)}: what daemon, driver and plugin need"


def _print_summary(path: Path, names: list[str]) -> None:
    files = [name for name in names if name and not name.endswith("/")]
    depth = 2 if path.suffix == ".whl" else 1
    folders = Counter("/".join(name.split("/")[:depth]) for name in files)
    print(f"{path.name}: {len(files)} files, {path.stat().st_size:,} bytes")
    for folder, count in sorted(folders.items()):
        print(f"  {folder}{f': {count} files' if count > 1 else ''}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
