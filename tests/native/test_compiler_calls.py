"""The calls of the compiler library at their border: what they give, and the result codes of mistakes."""

from __future__ import annotations

from pathlib import Path

import openvino
import pytest

from softnpu.driver.program_environment import ENV_COMPILER
from tests.conftest import StartDaemon
from tests.native.conftest import Run
from tests.support.models import write_scale
from tests.support.serialized_forms import copying_form

PROLOGUE = """
import ctypes as c, sys
from pathlib import Path
lib = c.CDLL("libze_loader.so.1")
P, U8, U64 = c.c_void_p, c.POINTER(c.c_uint8), c.c_uint64
null, by = P(), c.byref
class Version(c.Structure): _fields_ = [("major", c.c_uint16), ("minor", c.c_uint16)]
class CompilerDesc(c.Structure): _fields_ = [("version", Version), ("level", c.c_uint32)]
class Desc(c.Structure):
    _fields_ = [("model", c.c_char_p), ("size", U64), ("options", c.c_char_p), ("length", U64)]
class Allocator(c.Structure): pass
ALLOCATE = c.CFUNCTYPE(P, c.POINTER(Allocator), U64)
Allocator._fields_ = [("allocate", ALLOCATE), ("deallocate", P)]
given = []
def allocate(_, size):
    given.append(c.create_string_buffer(size))
    return c.addressof(given[-1])
room = Allocator(ALLOCATE(allocate), None)
model = Path(sys.argv[1]).read_bytes()
def desc(ir=model, options=b""): return Desc(ir, len(ir or b""), options, len(options))
def call(name, *arguments): return f"{getattr(lib, name)(*arguments) & 0xFFFFFFFF:#x}"
compiler, blob, size, text, length = P(), U8(), U64(), U8(), U64()
assert call("vclCompilerCreate", by(CompilerDesc(Version(7, 10), 0)), null, by(compiler), null) == "0x0"
"""
REQUIREMENTS = """
out = by(blob), by(size)
created = call("vclAllocatedExecutableCreate3", compiler, desc(), by(room), *out, by(text), by(length))
assert created == "0x0" and size.value > 1000
assert [len(each) for each in given] == [size.value, length.value]
said = c.string_at(text, length.value)
for platform, wanted in ((b"4000", said), (b"5010", said.replace(b"4000", b"5010"))):
    executable, room_needed = P(), U64()
    options = b'--config NPU_PLATFORM="' + platform + b'"'
    asked = desc(options=options)
    made = call("vclAllocatedExecutableCreate4", compiler, asked, by(room), *out, by(executable))
    assert made == "0x0"
    get = "vclExecutableGetCompatibilityString"
    assert call(get, executable, null, by(room_needed)) == "0x0"
    string = c.create_string_buffer(room_needed.value)
    assert call(get, executable, string, by(room_needed)) == "0x0"
    assert string.raw == wanted + b"\\0", (string.raw, wanted)
    print(call("vclGetCompilerIsOptionSupported", compiler, b"COMPATIBILITY_CHECK", string))
    assert call("vclExecutableDestroy", executable) == "0x0"
print(call("vclGetCompilerIsOptionSupported", compiler, b"COMPATIBILITY_CHECK", null))
print(call("vclGetCompilerIsOptionSupported", compiler, b"COMPATIBILITY_CHECK", b"anything"))
"""
CREATE = 'call("vclAllocatedExecutableCreate2", {compiler}, {desc}, {room}, by(blob), by(size))'
SUPPORTED = 'call("vclGetCompilerIsOptionSupported", compiler, {option}, null)'
MISTAKES = {
    CREATE.format(compiler="null", desc="desc()", room="by(room)"): "0x78000005",
    CREATE.format(compiler="by(size)", desc="desc()", room="by(room)"): "0x78000004",
    CREATE.format(compiler="compiler", desc="desc()", room="null"): "0x78000004",
    CREATE.format(compiler="compiler", desc="desc(None)", room="by(room)"): "0x78000004",
    CREATE.format(compiler="compiler", desc='desc(b"no model")', room="by(room)"): "0x78000004",
    CREATE.format(compiler="compiler", desc="desc(options=tiles)", room="by(room)"): "0x78000004",
    CREATE.format(compiler="compiler", desc="desc()", room="by(none)"): "0x70000002",
    SUPPORTED.format(option="null"): "0x78000004",
    SUPPORTED.format(option='b"NO_SUCH"'): "0x78000003",
    'call("vclCompilerGetProperties", compiler, null)': "0x78000004",
    'call("vclCompilerDestroy", null)': "0x78000005",
    'call("vclExecutableDestroy", compiler)': "0x78000004",
    'call("vclQueryNetworkDestroy", null)': "0x78000005",
    'call("vclProfilingDestroy", null)': "0x78000005",
    'call("vclProfilingCreate", null, by(blob), null)': "0x78000004",
}
HELPERS = """
tiles = b'--config NPU_TILES="99"'
none = Allocator(ALLOCATE(lambda _, size: None), None)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small model as OpenVINO's plugin hands it over."""
    path = tmp_path / "serialized"
    path.write_bytes(copying_form(openvino.Core().read_model(write_scale(tmp_path, 2.0)), (7, 10)))
    return path


def test_blobs_have_a_compatibility_string_that_the_compiler_checks(
    start_daemon: StartDaemon, run: Run, model: Path
) -> None:
    start_daemon()
    done = run(PROLOGUE + REQUIREMENTS, str(model), environment={ENV_COMPILER: "plugin"})
    assert done.stdout.split() == ["0x0", "0x78000003", "0x0", "0x78000003"]


def test_mistakes_have_their_result_codes(start_daemon: StartDaemon, run: Run, model: Path) -> None:
    start_daemon()
    prints = "".join(f"print({mistake})\n" for mistake in MISTAKES)
    done = run(PROLOGUE + HELPERS + prints, str(model), environment={ENV_COMPILER: "plugin"})
    assert dict(zip(MISTAKES, done.stdout.split(), strict=True)) == MISTAKES
