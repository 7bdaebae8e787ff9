"""Constants that are written and digested while OpenVINO writes the XML."""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.emulator.blob import container
from softnpu.emulator.blob.container import BlobReader, Section
from softnpu.emulator.common import linux
from softnpu.emulator.compiler import canonical as module
from softnpu.emulator.compiler import constants_file
from softnpu.emulator.compiler.canonical import Canonical, canonical
from softnpu.emulator.compiler.constants import serialize_ir
from softnpu.emulator.compiler.constants_file import ConstantsFile
from softnpu.emulator.compiler.stages import COMPILE_STAGES, Stages

pytestmark = pytest.mark.quick

_META = b"metadata"
_AT = container.second_at(4, len(_META))


@functools.cache
def _model() -> ov.Model:
    """Several constants, two of them equal, one in a body."""
    x = ops.parameter([8, 64], np.float32, name="x")
    values = np.arange(512, dtype=np.float32).reshape(8, 64)
    total = ops.add(ops.multiply(x, ops.constant(values)), ops.constant(values.copy()))
    chosen = ops.if_op(ops.constant(np.array(True)))
    for body in ("then", "else"):
        inner = ops.parameter([8, 64], np.float32)
        branch = ov.Model([ops.result(ops.add(inner, ops.constant(values + len(body))))], [inner], body)
        getattr(chosen, f"set_{body}_body")(branch)
    chosen.set_input(total.output(0), *(chosen.get_function(at).get_parameters()[0] for at in range(2)))
    out = chosen.set_output(*(chosen.get_function(at).get_results()[0] for at in range(2)))
    return ov.Model([ops.result(ops.add(out, ops.constant(values[:, :1])))], [x], "constants")


def _form(is_ours: bool = False) -> Canonical:
    return canonical(_model().clone(), None, 0, "model", lambda _: None, embedded_at=_AT, is_ours=is_ours)


def _parts(form: Canonical) -> list[bytes | memoryview]:
    assert form.reference is not None
    sections: dict[Section, list[bytes | memoryview]] = {
        Section.METADATA: [_META],
        Section.WEIGHTS: list(form.embedded_chunks()),
        Section.IR: [form.xml],
        Section.WEIGHTS_REFERENCE: [msgspec.msgpack.encode(form.reference)],
    }
    return container.parts_of(sections, {} if form.file is None else {Section.WEIGHTS: form.file.digest})


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_blob_is_the_same_whenever_its_constants_are_written(
    monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    later = _form()
    assert later.file is None
    monkeypatch.setattr(module, "_MANY", 1)
    early = _form(is_ours)
    assert early.file is not None
    fd = early.file.sealed(_parts(early))
    try:
        assert linux.has_seals(fd, linux.SEALS_IMMUTABLE)
        content = os.pread(fd, 1 << 20, 0)
    finally:
        os.close(fd)
    assert content == b"".join(_parts(later))
    assert bytes(BlobReader(content).read(Section.IR)) == later.xml


def test_constants_in_another_order_than_the_xmls_are_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = b"".join(_parts(_form()))
    monkeypatch.setattr(module, "_MANY", 1)

    def turned(model: ov.Model, subject: str, before: Callable[[list[Any]], None], **more: Any) -> Any:
        return serialize_ir(model, subject, before=lambda nodes: before(nodes[::-1]), **more)

    monkeypatch.setattr(module, "serialize_ir", turned)
    form = _form()
    assert form.file is None
    assert b"".join(_parts(form)) == expected


def test_without_a_thread_they_are_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = b"".join(_parts(_form()))
    monkeypatch.setattr(module, "_MANY", 1)

    def submit(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    form = _form()
    assert form.file is None
    assert b"".join(_parts(form)) == expected


def test_any_number_of_pieces_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written = os.pwritev
    monkeypatch.setattr(constants_file, "_AT_ONCE", 3)
    # as little at once as the kernel may take
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, at: written(fd, [pieces[0][:2]], at))
    file = ConstantsFile(mmap.PAGESIZE + 8, [b"one", b"", b"two", b"three", b"4"])
    assert bytes(file.view) == b"onetwothree4"
    assert file.digest == container.digest_of_chunks([b"onetwothree4"])
    with pytest.raises(ValueError, match="not at 5"):
        file.sealed([b"short", file.view])
    fd = file.sealed([bytes(mmap.PAGESIZE + 8), file.view, b"end"])
    assert os.pread(fd, 100, mmap.PAGESIZE + 4) == bytes(4) + b"onetwothree4end"
    os.close(fd)


def test_a_file_that_nobody_takes_is_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = ConstantsFile(0, [b"constants"])
    assert len(os.listdir("/proc/self/fd")) > before
    del file
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_stage_reports_no_more_than_somebody_can_see(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr("time.perf_counter_ns", lambda: now[0])
    sent: list[tuple[str, float]] = []
    stages = Stages(lambda stage, done: sent.append((stage, done)), COMPILE_STAGES)
    stages.begin("read")
    for number in range(1, 101):
        now[0] += 1_000_000
        stages.advance(number / 100)
    stages.begin("shape")
    assert [stage for stage, _ in sent] == ["read"] * 6 + ["shape"]
    assert [done for _, done in sent] == sorted(done for _, done in sent)
