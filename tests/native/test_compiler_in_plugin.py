"""OpenVINO with its compiler in the plugin: softnpu's library in the place of Intel's, present or not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import openvino
import pytest

from softnpu.driver import faults
from softnpu.driver.native_library import NativeLibrary
from softnpu.driver.program_environment import ENV_COMPILER
from tests.conftest import StartDaemon
from tests.native.conftest import OPENVINO, Run, client
from tests.native.test_weightless import WEIGHTLESS
from tests.support.waiting import wait_until

LIBRARY = "libopenvino_intel_npu_compiler_loader.so"
STAND_IN = """
#include <stdint.h>
#include <stdio.h>
__attribute__((constructor)) static void told(void) { fputs("the stand-in was loaded\\n", stderr); }
"""
WAYS = """
image = images()
config = {"NPU_COMPILER_TYPE": sys.argv[2]} if sys.argv[2] else {}
compiled = core.compile_model(digits(), "NPU", config)
check(compiled, digits(), image)
print(compiled.get_property("NPU_COMPILER_TYPE"))
"""
BOTH = """
image, blobs = images(), {}
for way in ("PLUGIN", "DRIVER"):
    core.set_property("NPU", {"NPU_COMPILER_TYPE": way})
    compiled = core.compile_model(digits(), "NPU", {"PERF_COUNT": True})
    check(compiled, digits(), image)
    request = compiled.create_infer_request()
    request.infer([image])
    assert request.get_profiling_info(), way
    blobs[way] = compiled.export_model()
    assert core.query_model(digits(), "NPU"), way
for way, other in (("PLUGIN", "DRIVER"), ("DRIVER", "PLUGIN")):
    blob = blobs[way]
    blob = blob if isinstance(blob, io.BytesIO) else io.BytesIO(blob)
    check(core.import_model(blob, "NPU", {"NPU_COMPILER_TYPE": other}), digits(), image)
core.set_property("NPU", {"NPU_COMPILER_TYPE": "PLUGIN"})
try:
    core.compile_model(digits(), "NPU", {"NPU_TILES": 99})
except RuntimeError as failure:
    assert "at most 6" in str(failure), failure
else:
    raise AssertionError("compiled")
other = core.compile_model(digits(), "NPU", {"NPU_PLATFORM": "5010"})  # no such device: for export alone
assert len(blob_of(other)) > 1000
core.set_property("NPU", {"NPU_COMPILER_TYPE": "PLUGIN"})
CONFIG["NPU_COMPILER_TYPE"] = "PLUGIN"
through(digits(), DIGITS.replace(".xml", ".bin"), image)
"""
FOREIGN = """
try:
    core.import_model(io.BytesIO(b"\\x7fELF" + bytes(9000)), "NPU", {"NPU_IMPORT_RAW_BLOB": True})
except RuntimeError as failure:
    print(failure)
"""
OFFLINE = """
def compiled(): return core.compile_model(digits(), "NPU", {"NPU_PLATFORM": "5010"})
assert core.available_devices == ["CPU"]
try:
    compiled()
except RuntimeError as failure:
    assert "no socket there; expected a running daemon" in str(failure), failure
else:
    raise AssertionError("compiled by nobody")
print("no daemon", flush=True)
sys.stdin.readline()
print(len(blob_of(compiled())) > 1000)
"""
INTERRUPTED = """
print("compiling", flush=True)
try:
    core.compile_model(digits(), "NPU")
except RuntimeError as failure:
    print("vclAllocatedExecutableCreate" in str(failure), "DEVICE_LOST" in str(failure))
"""


@pytest.fixture
def install(tmp_path: Path) -> Path:
    """A copy of OpenVINO, of links, with a stand-in for Intel's library beside it."""
    package = Path(openvino.__file__).parent
    copy = tmp_path / "install" / "openvino"
    shutil.copytree(package, copy, copy_function=os.link if _same_device(package, tmp_path) else shutil.copy)
    source = tmp_path / "stand_in.c"
    source.write_text(STAND_IN)
    subprocess.run(["c++", "-x", "c", "-shared", "-fPIC", source, "-o", copy / "libs" / LIBRARY], check=True)
    return copy.parent


def _same_device(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev


@pytest.mark.parametrize(
    ("chosen", "asked", "expected"),
    [("", "", "DRIVER"), ("plugin", "", "PLUGIN"), ("plugin", "DRIVER", "DRIVER")],
)
def test_a_wheel_compiles_in_the_driver_unless_told_otherwise(
    start_daemon: StartDaemon, run: Run, digits: Path, chosen: str, asked: str, expected: str
) -> None:
    start_daemon()
    done = run(OPENVINO + WAYS, str(digits), asked, environment={ENV_COMPILER: chosen})
    assert done.stdout.strip().endswith(expected)


def test_a_wheel_says_how_to_get_a_compiler(start_daemon: StartDaemon, run: Run, digits: Path) -> None:
    start_daemon()
    done = run(OPENVINO + WAYS, str(digits), "PLUGIN", check=False)
    assert done.returncode != 0
    assert "brings no compiler library" in done.stderr
    assert f"{ENV_COMPILER}=plugin" in done.stderr


@pytest.mark.parametrize(("chosen", "expected"), [("", "PLUGIN"), ("driver", "DRIVER")])
def test_an_installed_compiler_is_replaced(
    start_daemon: StartDaemon, run: Run, digits: Path, install: Path, chosen: str, expected: str
) -> None:
    start_daemon()
    path = f"{install}:{Path(__file__).parents[2]}"
    done = run(OPENVINO + WAYS, str(digits), "", environment={ENV_COMPILER: chosen, "PYTHONPATH": path})
    assert done.stdout.strip().endswith(expected)
    assert "stand-in" not in done.stderr


def test_both_ways_give_the_same(start_daemon: StartDaemon, run: Run, digits: Path, tmp_path: Path) -> None:
    start_daemon()
    code = OPENVINO + WEIGHTLESS + BOTH
    run(code, str(digits), str(tmp_path), environment={ENV_COMPILER: "plugin"})


def test_a_blob_of_intels_compiler_is_named(start_daemon: StartDaemon, run: Run, digits: Path) -> None:
    start_daemon()
    done = run(OPENVINO + FOREIGN, str(digits), environment={"SOFTNPU_LOG": ""})
    assert "as Intel's NPU compiler makes it" in done.stderr, done.stdout


def test_a_process_without_a_device_compiles_for_export_once_a_daemon_is_there(
    start_daemon: StartDaemon, surroundings: dict[str, str], digits: Path, tmp_path: Path
) -> None:
    words = (str(digits), str(tmp_path))
    environment = {**surroundings, ENV_COMPILER: "plugin"}
    with client(OPENVINO + WEIGHTLESS + OFFLINE, environment, "no daemon", *words) as process:
        start_daemon()
        said, _ = process.communicate("\n", timeout=120)
    assert said == "True\n"


def test_the_death_of_the_daemon_ends_a_compilation(
    start_daemon: StartDaemon, surroundings: dict[str, str], digits: Path
) -> None:
    daemon = start_daemon()
    faults.inject("compile-slow", value="600s")
    environment = {**surroundings, ENV_COMPILER: "plugin"}
    with client(OPENVINO + INTERRUPTED, environment, "compiling", str(digits)) as process:
        wait_until(lambda: faults.status()[0].hits == 1, what="the compilation", deadline_s=60)
        daemon.kill()
        said, _ = process.communicate(timeout=60)
    assert said == "True True\n"


def test_a_preloaded_allocator_leaves_the_program_startable(native: NativeLibrary, tmp_path: Path) -> None:
    """With an audit library glibc has 512 bytes of static TLS for libraries; jemalloc needs 3 KiB."""
    source, library = tmp_path / "allocator.cpp", tmp_path / "allocator.so"
    source.write_text(
        'extern "C" __attribute__((tls_model("initial-exec"))) thread_local char state[4096] = {};\n'
        'extern "C" char* touch() { return state; }\n'
    )
    subprocess.run(["c++", "-shared", "-fPIC", str(source), "-o", str(library)], check=True, timeout=60)
    surroundings = native.environment(tmp_path / "npu.sock", os.environ)
    assert "LD_AUDIT" in surroundings
    done = subprocess.run(
        ["true"],
        env={**surroundings, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    chosen = {**os.environ, "GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=600", ENV_COMPILER: "installed"}
    kept = native.environment(tmp_path / "npu.sock", chosen)
    assert kept["GLIBC_TUNABLES"] == chosen["GLIBC_TUNABLES"]
    assert kept.get("LD_AUDIT") == os.environ.get("LD_AUDIT")
