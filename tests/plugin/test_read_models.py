"""Files that OpenVINO reads in the program: it does so once, and the cached IR serves that very file only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.emulator.disk_cache import entry_files
from softnpu.plugin import Core, openvino_runtime
from softnpu.plugin.models import model_source
from softnpu.plugin.models.read_models import FOLDER
from tests.plugin.weights_files import INPUT, write_onnx

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
ON_NPU = {**F32, "NPU_BATCH_MODE": "COMPILER"}
"""With which the program reads it: see `test_onnx_files`."""


@pytest.fixture
def cache(private_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of cached IRs, in the driver's cache."""
    monkeypatch.setenv(ENV_CACHE_DIR, str(private_dir / "cache"))
    return private_dir / "cache" / FOLDER


def check(core: Core, path: Path, config: dict[str, Any] = ON_NPU) -> None:
    """Compile, and compare with OpenVINO's CPU device."""
    expected = ov.Core().compile_model(path, "CPU", F32)(INPUT)[0]
    np.testing.assert_array_equal(core.compile_model(path, "NPU", config)(INPUT)[0], expected)


def entries(cache: Path) -> list[Path]:
    return [entry.path for entry in entry_files.entries(cache)] if cache.is_dir() else []


def scaled(path: Path, factor: float) -> None:
    """Change the weights in place: same length, other numbers."""
    import onnx

    model = onnx.load(path)
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor) * np.float32(factor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    path.write_bytes(model.SerializeToString())


def test_the_next_compilation_does_not_read_the_file(
    shared_core: Core, private_dir: Path, cache: Path, reads: list[Path]
) -> None:
    path = write_onnx(private_dir, external=False)
    check(shared_core, path)
    assert (reads, len(entries(cache))) == ([path], 1)
    other = path.rename(private_dir / "other name.onnx")
    check(shared_core, other)
    assert reads == [path]
    assert shared_core.compile_model(other, "NPU", ON_NPU).get_property("NETWORK_NAME") == "other name"


def test_the_cached_ir_lies_in_cache_dir_if_set(
    shared_core: Core, private_dir: Path, cache: Path, reads: list[Path]
) -> None:
    path = write_onnx(private_dir, external=False)
    config = {**ON_NPU, "CACHE_DIR": private_dir / "own"}
    for _ in range(2):
        check(shared_core, path, config)
    assert (len(reads), len(entries(private_dir / "own" / FOLDER)), entries(cache)) == (1, 1, [])


def test_changed_content_is_read_again(
    shared_core: Core, private_dir: Path, cache: Path, reads: list[Path]
) -> None:
    path = write_onnx(private_dir, external=False)
    for factor in (0.5, 0.25):
        check(shared_core, path)
        scaled(path, factor)
        check(shared_core, path)
    assert (len(reads), len(entries(cache))) == (3, 3)


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    shared_core: Core, private_dir: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_onnx(private_dir, external=False)
    before = path.read_bytes()

    def changed_meanwhile(file: Path, *rest: Any) -> ov.Model:
        scaled(path, 0.5)
        model = openvino_runtime.read_model(file, *rest)
        path.write_bytes(before)
        return model

    with monkeypatch.context() as patch:
        patch.setattr(model_source, "read_model", changed_meanwhile)
        shared_core.compile_model(path, "NPU", ON_NPU)
    assert not entries(cache)
    check(shared_core, path)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:], id="flipped"),
        pytest.param(lambda data: data[:-7], id="truncated"),
        pytest.param(lambda _data: b"", id="empty"),
    ],
)
def test_a_damaged_entry_is_read_again(
    shared_core: Core, private_dir: Path, cache: Path, reads: list[Path], damage: Callable[[bytes], bytes]
) -> None:
    path = write_onnx(private_dir, external=False)
    check(shared_core, path)
    (entry,) = entries(cache)
    data = entry.read_bytes()
    entry.unlink()
    entry.write_bytes(damage(data))
    entry.chmod(0o440)
    check(shared_core, path)
    assert len(reads) == 2


def test_models_depending_on_other_files_or_the_program_are_not_kept(
    shared_core: Core, private_dir: Path, cache: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(shared_core, write_onnx(private_dir))
    monkeypatch.setattr(openvino_runtime, "_extended", True)
    check(shared_core, write_onnx(private_dir, external=False))
    assert (len(reads), entries(cache)) == (2, [])


def test_a_refused_extension_does_not_prevent_caching(
    shared_core: Core, private_dir: Path, cache: Path
) -> None:
    with pytest.raises(RuntimeError, match=r"no_such_library"):
        shared_core.add_extension("/no_such_library.so")
    check(shared_core, write_onnx(private_dir, external=False))
    assert len(entries(cache)) == 1


def test_without_a_cache_nothing_is_kept(
    shared_core: Core, private_dir: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_CACHE_DIR, "")
    path = write_onnx(private_dir, external=False)
    for _ in range(2):
        check(shared_core, path)
    assert len(reads) == 2
