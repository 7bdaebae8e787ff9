"""The library from outside: its symbols, dependencies and tables."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

from softnpu.driver.native_library import NativeLibrary
from tests.conformance.call_tables import CALLS, Status
from tests.native import loader_names

pytestmark = pytest.mark.quick
_NEW_NAMESPACE = -1
ALLOWED = {
    "libc.so.6",
    "libdl.so.2",
    "libm.so.6",
    "libgcc_s.so.1",
    "libpthread.so.0",
    "ld-linux-x86-64.so.2",
}
API = 1 << 16 | 16
UNSUPPORTED = 0x78000003
EXPORTING = ("ze_api.h", "zes_api.h", "zet_api.h")


def symbols(native: NativeLibrary, which: str) -> set[str]:
    told = subprocess.run(
        ["nm", "-D", which, str(native.loader)], capture_output=True, text=True, check=True, timeout=30
    )
    return {line.split()[-1].split("@")[0] for line in told.stdout.splitlines()}


def test_every_function_of_the_headers_is_exported(native: NativeLibrary) -> None:
    wanted = {call.name for call in CALLS if call.header in EXPORTING}
    assert wanted - symbols(native, "--defined-only") == set()


def test_every_function_of_other_loaders_is_exported(native: NativeLibrary) -> None:
    wanted = loader_names.exported()
    assert len(wanted) > 800
    assert wanted - symbols(native, "--defined-only") == set()


def test_it_reports_the_version_of_the_package(native: NativeLibrary) -> None:
    version = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["version"]
    assert f"(softnpu {version}, interface ".encode() in native.driver.read_bytes()


def test_nothing_but_level_zero_and_the_compiler_is_exported(native: NativeLibrary) -> None:
    public = re.compile("(ze(s|t|l|r)?|vcl)[A-Z]")
    others = {name for name in symbols(native, "--defined-only") if not public.match(name)}
    assert others == set()


def test_it_depends_only_on_the_c_library(native: NativeLibrary) -> None:
    for library in (native.driver, native.loader):
        told = subprocess.run(
            ["objdump", "-p", str(library)], capture_output=True, text=True, check=True, timeout=30
        )
        needed = set(re.findall(r"NEEDED\s+(\S+)", told.stdout))
        assert needed - ALLOWED == set()


@cache
def load(path: Path) -> ctypes.CDLL:
    """Load a library apart: OpenVINO finds by its name what a process has loaded, also in later tests."""
    libc = ctypes.CDLL(None)
    libc.dlmopen.restype = ctypes.c_void_p
    handle = libc.dlmopen(ctypes.c_long(_NEW_NAMESPACE), os.fsencode(path), os.RTLD_NOW)
    assert handle
    return ctypes.CDLL(str(path), handle=handle)


TABLES = [
    ("zeGetGlobalProcAddrTable", "zeInit", [0, 1]),
    ("zeGetDriverProcAddrTable", "zeDriverGet", [0, 1, 2, 3, 4, 5]),
    ("zeGetDeviceProcAddrTable", "zeDeviceGet", [0, 2, 5, 13, 14, 17]),
    ("zeGetContextProcAddrTable", "zeContextCreate", [0, 1, 2]),
    ("zeGetCommandQueueProcAddrTable", "zeCommandQueueCreate", [0, 1, 2, 3]),
    ("zeGetCommandListProcAddrTable", "zeCommandListCreate", [0, 1, 2, 3, 4, 8, 28, 33]),
    ("zeGetCommandListExpProcAddrTable", "", [2, 3]),
    ("zeGetFenceProcAddrTable", "zeFenceCreate", [0, 1, 2, 3, 4]),
    ("zeGetEventProcAddrTable", "zeEventCreate", [0, 1, 2, 3, 4, 5]),
    ("zeGetEventPoolProcAddrTable", "zeEventPoolCreate", [0, 1]),
    ("zeGetMemProcAddrTable", "zeMemAllocShared", [0, 1, 2, 3, 4, 5]),
    ("zesGetDeviceProcAddrTable", "zesDeviceGetProperties", [0, 9]),
]


def test_tables_for_the_official_loader_are_filled(native: NativeLibrary) -> None:
    library = load(native.driver)
    for getter, first, supported in TABLES:
        table = (ctypes.c_void_p * 64)()
        assert getattr(library, getter)(ctypes.c_uint32(API), table) == 0
        assert all(table[index] for index in supported), getter
        if first:
            assert table[0] == ctypes.cast(getattr(library, first), ctypes.c_void_p).value


def test_table_of_an_older_loader_is_not_overrun(native: NativeLibrary) -> None:
    library = load(native.driver)
    table = (ctypes.c_void_p * 64)()
    assert library.zeGetCommandListProcAddrTable(ctypes.c_uint32(1 << 16 | 3), table) == 0
    assert table[21] is not None  # the last one in 1.0 that an NPU implements
    assert table[28] is None  # zeCommandListHostSynchronize came with 1.9


def test_tables_of_features_that_an_npu_lacks_stay_empty(native: NativeLibrary) -> None:
    library = load(native.driver)
    for name in ("Module", "Kernel", "Image"):
        table = (ctypes.c_void_p * 64)()
        assert getattr(library, f"zeGet{name}ProcAddrTable")(ctypes.c_uint32(API), table) == 0
        assert not any(table)


def test_functions_that_an_npu_lacks_are_an_unsupported_feature(native: NativeLibrary) -> None:
    library = load(native.loader)
    absent = {call.name for call in CALLS if call.header in EXPORTING and call.status is Status.ABSENT}
    for name in absent - {"zeDriverGetDefaultContext"}:  # returns no result
        function = getattr(library, name)
        function.restype = ctypes.c_uint32
        assert function(None, None, None, None) == UNSUPPORTED, name


def test_loader_reports_its_version(native: NativeLibrary) -> None:
    library = load(native.loader)
    told = (ctypes.c_uint32 * 20)()
    assert library.zelGetLoaderVersion(told) == 0
    assert bytes(told)[:6] == b"loader"
    assert told[16] == API
    assert tuple(told[17:20]) >= (1, 18, 5)  # from this version on programs call zeInitDrivers


ENTRIES = Path(__file__).parents[2] / "driver" / "native" / "src" / "entry"
_FUNCTION = re.compile(
    r"^(?:ZE_EXPORT |static |extern \"C\" )?ze_result_t (\w+)\([^;{]*\) \{(.*?)\}$(?=\n(?:\n|[^ ]|\Z))",
    re.MULTILINE | re.DOTALL,
)
_PASSED_ON = re.compile(r"\s*return (\w+)(?:<\w+>)?\([^;]*\);\s*")
_TRIVIAL = {
    "ready",  # called by others
    "zeLoaderInit",  # they return a constant
    "zelLoaderZerTracingLayerInit",
}


def test_no_exception_leaves_a_call() -> None:
    """Every function that a program can call runs in `guarded`, or forwards entirely to one that does."""
    texts = [file.read_text() for file in sorted(ENTRIES.glob("*.cpp"))]
    bodies = {found[1]: found[2] for text in texts for found in _FUNCTION.finditer(text)}
    assert len(bodies) > 130
    for name in bodies.keys() - _TRIVIAL:
        walled = name
        while "guarded(" not in bodies[walled]:
            passed_on = _PASSED_ON.fullmatch(bodies[walled])
            assert passed_on is not None, name
            walled = passed_on[1]
