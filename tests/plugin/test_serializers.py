"""NPU_USE_BASE_MODEL_SERIALIZER and its threshold: which weights of a model in memory are copied."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from softnpu.driver.process_memory import gather
from softnpu.emulator.compiler import constants
from softnpu.plugin import Core, ModelError, PropertyError
from softnpu.plugin.models import serializer
from softnpu.plugin.models.model_source import SourceOptions, from_model
from tests.plugin.weights_files import INPUT, SIZE, dense_model, write_dense
from tests.support.cases import case
from tests.support.daemon import Daemon

WEIGHTS = 2 * SIZE * SIZE * 4


@pytest.fixture
def mapped(private_dir: Path) -> ov.Model:
    """A model whose constants OpenVINO maps from a file."""
    return ov.Core().read_model(write_dense(private_dir))


def _in_files(model: ov.Model, options: SourceOptions) -> tuple[int, int]:
    """Bytes of weights passed as a file of the user's, and as a copy in memory."""
    from_file = copied = 0
    with from_model(model, "dense", options) as source:
        for file in source.weights:
            if "memfd" in str(Path(f"/proc/self/fd/{file.fd}").readlink()):
                copied += file.length
            else:
                from_file += file.length
    return from_file, copied


def test_constants_below_the_threshold_are_copied(mapped: ov.Model) -> None:
    cases: list[tuple[int, tuple[int, int]]] = [
        (1, (WEIGHTS, 0)),
        (SIZE * SIZE * 4, (WEIGHTS, 0)),
        (SIZE * SIZE * 4 + 1, (0, WEIGHTS)),
    ]
    for below, expected in cases:
        with case(below, expected):
            assert _in_files(mapped, SourceOptions(copy_below=below)) == expected


@pytest.mark.parametrize("value", [True, False])
def test_the_base_serializer_copies_and_the_other_does_not(
    core: Core, daemon: Daemon, mapped: ov.Model, value: bool
) -> None:
    compiled = core.compile_model(mapped, "NPU", {"NPU_USE_BASE_MODEL_SERIALIZER": value})
    maps = Path(f"/proc/{daemon.engine().engine_pid}/maps").read_text()
    assert ("dense.bin" in maps) is not value
    assert compiled.get_property("NPU_USE_BASE_MODEL_SERIALIZER") is value


def test_the_numbers_and_the_blob_are_the_same(shared_core: Core) -> None:
    configs: list[dict[str, Any]] = [
        {"NPU_USE_BASE_MODEL_SERIALIZER": True},
        {"NPU_SERIALIZATION_WEIGHTS_SIZE_THRESHOLD": 100},
        {"NPU_SERIALIZATION_WEIGHTS_SIZE_THRESHOLD": 1 << 30},
        {"NPU_USE_BASE_MODEL_SERIALIZER": True, "NPU_SERIALIZATION_WEIGHTS_SIZE_THRESHOLD": 100},
    ]
    for config in configs:
        with case(config):
            model = dense_model()
            expected = shared_core.compile_model(model)
            found = shared_core.compile_model(model, "NPU", config)
            np.testing.assert_array_equal(found(INPUT)[0], expected(INPUT)[0])
            assert found.meta.name == "dense"
            blobs = [each._executable.graph.get_weightless_blob()[0] for each in (expected, found)]
            assert blobs[0] == blobs[1]


def test_copies_and_a_weights_file_exclude_each_other(shared_core: Core) -> None:
    config = {"NPU_USE_BASE_MODEL_SERIALIZER": True, "WEIGHTS_PATH": "model.bin"}
    with pytest.raises(PropertyError, match=r"WEIGHTS_PATH.*NPU_USE_BASE_MODEL_SERIALIZER.*one of the two"):
        shared_core.compile_model(dense_model(), "NPU", config)


def _content(model: ov.Model) -> tuple[bytes, list[bytes]]:
    with from_model(model, "dense") as source:
        weights = [os.pread(file.fd, file.length, file.offset) for file in source.weights]
        return os.pread(source.xml_fd, source.xml_length, 0), weights


def test_constants_are_copied_while_openvino_writes_the_ir(monkeypatch: pytest.MonkeyPatch) -> None:
    copied, serialized = threading.Event(), constants._serialized

    def copy(*arguments: Any) -> Any:
        try:
            return gather(*arguments)
        finally:
            copied.set()

    def write(model: ov.Model) -> bytes:
        assert copied.wait(60), "they are copied afterwards"
        return serialized(model)

    expected = _content(dense_model())
    monkeypatch.setattr(serializer, "gather", copy)
    monkeypatch.setattr(constants, "_serialized", write)
    assert _content(dense_model()) == expected


def test_without_a_thread_they_are_copied_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    expected = _content(dense_model())
    monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
    assert _content(dense_model()) == expected


def test_a_model_that_cannot_be_written_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: ov.Model) -> bytes:
        raise RuntimeError("no")

    monkeypatch.setattr(constants, "_serialized", refused)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ModelError, match="cannot be serialised"):
        _content(dense_model())
    assert set(os.listdir("/proc/self/fd")) == before
