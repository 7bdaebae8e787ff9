"""The compiler worker and ONNX files: what it makes of them, and what it does not show to OpenVINO."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from msgspec.structs import replace
from openvino import opset13 as ops

from softnpu.emulator.common import linux
from softnpu.emulator.compiler.constants import constant_nodes
from softnpu.emulator.interface.messages import FORMAT, ONNX, CacheOptions, WeightSource
from softnpu.emulator.interface.result import ZeResult
from softnpu.emulator.links.compiler import CompileJob
from tests.plugin.weights_files import write_onnx
from tests.support.compiler import PLATFORM, Worker

pytestmark = pytest.mark.quick
Sealed = Callable[[bytes], int]


def job(content: bytes, cache: CacheOptions | None = None) -> CompileJob:
    return CompileJob(name="dense", platform=PLATFORM, xml_length=len(content), format=ONNX, cache=cache)


@pytest.fixture
def sealed() -> Iterator[Sealed]:
    """Make immutable memory files."""
    fds: list[int] = []

    def make(content: bytes) -> int:
        fds.append(linux.sealed_copy("onnx", content))
        return fds[-1]

    yield make
    for fd in fds:
        os.close(fd)


def test_a_blob_has_all_constants_and_is_stored_after_the_answer(
    worker: Worker, tmp_path: Path, sealed: Sealed
) -> None:
    content = write_onnx(tmp_path, external=False).read_bytes()
    asked = job(content, CacheOptions(directory=str(tmp_path / "cache"), limit=1 << 30))
    made = [worker.blob(asked, [sealed(content)]) for _ in range(2)]
    reference = made[0].reader.weights_reference()
    assert reference is not None
    assert (reference.outside, made[0].placement) == ((), b"")
    assert [each.answer.origin for each in made] == ["compiled", "cache"]
    assert "stored" not in made[0].answer.log
    assert made[0].blob == made[1].blob


def test_what_is_no_whole_model_in_memory_is_refused(worker: Worker, tmp_path: Path, sealed: Sealed) -> None:
    path = write_onnx(tmp_path, external=False)
    content = path.read_bytes()
    good = job(content)
    with path.open("rb") as file:
        assert "a file that can change" in worker.info(good, [file.fileno()]).found
    beside = replace(good, weights=(WeightSource(offset=0, length=1),))
    assert "1 sources of weights" in worker.info(beside, [sealed(content), sealed(b"0")]).found
    assert worker.info(replace(good, xml_length=len(content) + 1), [sealed(content)]).result == (
        ZeResult.ERROR_INVALID_SIZE
    )
    assert worker.info(replace(good, format="other"), [sealed(content)]).property == FORMAT
    broken = worker.info(good, [sealed(content[:-9] + bytes(9))])
    assert (broken.property, broken.result) == (FORMAT, ZeResult.ERROR_INVALID_ARGUMENT)
    garbage = b"\x08\x07garbage" * 9  # which other readers of OpenVINO would look at
    assert "Model can't be parsed" in worker.info(job(garbage), [sealed(garbage)]).found


@pytest.mark.parametrize("length", [b"\x08", b"\x88\x00", b"\x88\x80\x00"])
def test_openvino_is_shown_no_file_that_may_name_another(
    worker: Worker, tmp_path: Path, sealed: Sealed, length: bytes
) -> None:
    """However the length of the key is encoded."""
    content = write_onnx(tmp_path).read_bytes()
    assert b"\n\x08location" in content
    content = content.replace(b"\n\x08location", b"\n" + length + b"location")
    info = worker.info(job(content), [sealed(content)])
    assert (info.property, info.found) == (FORMAT, "the text 'location', as external data has it")


def test_a_view_of_a_constant_keeps_it() -> None:
    def view() -> memoryview:
        weights = ops.constant(np.full((1 << 20,), 7, np.uint8), name="weights")
        model = ov.Model([ops.result(weights)], [])
        return next(node for node in constant_nodes(model, "model") if node.length).view()

    kept = view()
    gc.collect()
    owner: Any = kept.obj
    assert owner.owner.get_byte_size() == len(kept)
    assert set(kept) == {7}
