"""Kernels for tests: modules in WebAssembly's text format, with a description, that need no compiler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset13 as op
import pytest
import wasmtime

from softnpu.emulator.kernels.client import KernelClient
from softnpu.emulator.kernels.description import SECTION
from softnpu.emulator.openvino.kernels import operations
from softnpu.plugin import Core, openvino_runtime
from softnpu.plugin.models import kernels
from softnpu.tools.kernel.arrays import ArrayCall
from softnpu.tools.kernel.build import FOLDER
from tests.support.cli import softnpu
from tests.support.dynamic import named, source

SAME_SHAPE = """
  (func (export "softnpu_shapes") (param $call i32) (result i32)
    (local $from i32) (local $to i32)
    (local.set $from (i32.load offset=16 (local.get $call)))
    (local.set $to (i32.load offset=20 (local.get $call)))
    (memory.copy (i32.add (local.get $to) (i32.const 8))
      (i32.add (local.get $from) (i32.const 8)) (i32.const 72))
    (i32.const 0))"""
"""The output has the shape of the input."""
X, Y = (
    "(i32.load (i32.load offset=16 (local.get $call)))",
    "(i32.load (i32.load offset=20 (local.get $call)))",
)
"""The data of the input and of the output."""
ADD_ONE = f"(f32.store {Y} (f32.add (f32.load {X}) (f32.const 1))) (i32.const 0)"
"""The first element is one more, which is all of a tensor with one."""
DESCRIPTION: dict[str, Any] = {
    "abi": 1,
    "domain": "tests",
    "name": "Unary",
    "inputs": ["x"],
    "outputs": ["y"],
    "implementations": [{"inputs": ["f32"], "outputs": ["f32"], "run": "run"}],
}


@contextmanager
def forgotten() -> Iterator[None]:
    """Forget the kernels that a test adds; OpenVINO keeps their operations, which nobody else names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openvino_runtime, "_extended", openvino_runtime.is_extended())
        yield
        kernels._added.clear()


def added(core: Core, folder: Path, content: bytes) -> Any:
    """Add a kernel to what a program has; return the class of its operation. Within `forgotten`."""
    module = operations.load(content)
    file = folder / f"{module.description.name}.wasm"
    file.write_bytes(content)
    core.add_extension(file)
    return operations.operation(module)


def described(module: bytes, **changes: Any) -> bytes:
    """Return a module with a description, which `changes` changes."""
    return with_section(module, json.dumps(DESCRIPTION | changes).encode())


def with_section(module: bytes, text: bytes) -> bytes:
    """Return a module with one more custom section."""
    name = SECTION.encode()
    content = _number(len(name)) + name + text
    return module + b"\0" + _number(len(content)) + content


def kernel(
    run: str = ADD_ONE, *, shapes: str = SAME_SHAPE, more: str = "", memory: str = "1", **changes: Any
) -> bytes:
    """Return a kernel of one input and one output; `run` is the body of its function."""
    text = f"""(module {more} (memory (export "memory") {memory}) {shapes}
      (func $run (export "run") (param $call i32) (result i32) {run}))"""
    return described(bytes(wasmtime.wat2wasm(text)), **changes)


def shapes_body(body: str) -> str:
    """Return a function that tells the shapes."""
    return f'(func $shapes (export "softnpu_shapes") (param $call i32) (result i32) {body})'


def run(client: KernelClient, module: bytes, x: Any = (41,), deadline_ms: int = 10_000) -> npt.NDArray[Any]:
    """Load a kernel and run it once on f32."""
    array = np.asarray(x, np.float32)
    with ArrayCall(client.load(module), [("f32", array.shape)], {}, deadline_ms) as call:
        call.inputs[0][...] = array
        return call.run()[0].copy()


def _number(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


EACH = f"""(local $at i32) (local $end i32) (local $in i32)
  (local.set $in (i32.load offset=16 (local.get $call)))
  (local.set $end (i32.wrap_i64 (i64.mul
    (i64.load offset=16 (local.get $in)) (i64.load offset=80 (local.get $in)))))
  (block $done (loop $next
    (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
    (f32.store (i32.add (local.get $at) {Y}) (call $one (f32.load (i32.add (local.get $at) {X}))))
    (local.set $at (i32.add (local.get $at) (i32.const 4)))
    (br $next)))
  (i32.const 0)"""
"""Call a function $one for each element."""
ONE = "(func $one (param f32) (result f32) {})"


def elementwise(name: str, body: str = "(f32.mul (local.get 0) (f32.const 2))") -> bytes:
    """Return a kernel that computes each element of its output from that of its input."""
    return kernel(EACH, more=ONE.format(body), name=name)


def detections(folder: Path) -> bytes:
    """Build the example that decodes detections, whose outputs are dynamic."""
    built = folder / "detections.wasm"
    assert "wrote" in softnpu("kernel", "build", FOLDER / "detections.c", "-o", built).words
    return built.read_bytes()


def found_twice(operation: Any) -> ov.Model:
    """Return a model with it between operations: x [1, 6, up to 50] -> boxes, scores, classes, at most 5."""
    x = source("[1,6,1..50]")
    found = operation([op.relu(x).output(0)], most=5)
    boxes = op.multiply(found.output(0), op.constant(np.float32(2)))
    classes = op.add(found.output(2), op.constant(np.int32(1)))
    results = [named(boxes, "boxes"), named(found, "scores", 1), named(classes, "classes")]
    return ov.Model(results, [x], "found")
