"""Exports without weights: small files that locate their weights again, and refuse others by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from softnpu.plugin import BlobError, CompiledModel, Core, ModelError, NpuError, PropertyError
from softnpu.plugin.exported.blob_file import BlobFile
from tests.plugin.weights_files import (
    INPUT,
    SIZE,
    dense_model,
    tensors_of,
    write_dense,
    write_onnx,
    write_safetensors,
)
from tests.support.cases import case
from tests.support.daemon import Daemon

WEIGHTLESS = {"ENABLE_WEIGHTLESS": True}


@pytest.fixture
def ir(private_dir: Path) -> Path:
    """Two dense layers as an IR, with its weights file."""
    return write_dense(private_dir)


@pytest.fixture
def expected(reference: ov.Core, ir: Path) -> Any:
    config = {"INFERENCE_PRECISION_HINT": "f32"}
    return reference.compile_model(ir, "CPU", config)(INPUT)[0]


@pytest.fixture
def file(shared_core: Core, ir: Path, private_dir: Path) -> Path:
    path = private_dir / "dense.blob"
    shared_core.compile_model(ir, "NPU", WEIGHTLESS).export_model(path)
    return path


def _check(compiled: CompiledModel, expected: Any) -> None:
    np.testing.assert_array_equal(compiled(INPUT)[0], expected)


def test_an_export_without_weights_is_small_and_finds_them_again(
    shared_core: Core, ir: Path, file: Path, expected: Any
) -> None:
    assert ir.with_suffix(".bin").stat().st_size > 10 * file.stat().st_size
    _check(shared_core.import_model(file), expected)


def test_the_file_reports_where_its_weights_are(ir: Path, file: Path) -> None:
    with BlobFile.open(file) as opened:
        found = opened.metadata().weights
        reference = opened.part(opened.raw_part()).weights_reference()
    assert found is not None
    assert reference is not None
    weights = ir.with_suffix(".bin")
    assert [(source.path, source.offset, source.length) for source in found.sources] == [
        (str(weights), 0, weights.stat().st_size)
    ]
    content = weights.read_bytes()
    model = ov.Core().read_model(ir)
    largest = max(
        (op for op in model.get_ordered_ops() if op.get_type_name() == "Constant"),
        key=lambda op: op.get_byte_size(),
    )
    offsets = {c.name: offset for c, offset in zip(reference.outside, found.offsets, strict=True)}
    offset = offsets[largest.friendly_name]
    assert content[offset : offset + largest.get_byte_size()] == largest.data.tobytes()


def test_the_imported_model_is_the_same_image_as_the_compiled_one(
    core: Core, daemon: Daemon, ir: Path
) -> None:
    compiled = core.compile_model(ir, "NPU", WEIGHTLESS)
    imported = core.import_model(compiled.export_model())
    assert (daemon.engine().graphs, daemon.engine().images) == (2, 1)
    assert imported.load_ms == 0
    del compiled


def test_weights_path_gives_the_current_place_of_the_weights(
    shared_core: Core, ir: Path, file: Path, expected: Any
) -> None:
    moved = ir.with_name("moved.bin")
    shutil.move(ir.with_suffix(".bin"), moved)
    with pytest.raises(BlobError, match=r"dense\.bin: No such file.*WEIGHTS_PATH"):
        shared_core.import_model(file)
    _check(shared_core.import_model(file, "NPU", {"WEIGHTS_PATH": moved}), expected)
    _check(shared_core.import_model(file, "NPU", {ov.properties.weights_path: str(moved)}), expected)


@pytest.mark.parametrize("form", ["keyword", "property"])
def test_the_weights_may_come_from_a_given_model(
    shared_core: Core, ir: Path, file: Path, expected: Any, form: str, private_dir: Path
) -> None:
    folder = private_dir / "elsewhere"
    folder.mkdir()
    for suffix in (".xml", ".bin"):
        shutil.move(ir.with_suffix(suffix), folder / f"other{suffix}")
    model = ov.Core().read_model(folder / "other.xml")
    if form == "keyword":
        imported = shared_core.import_model(file, "NPU", model=model)
    else:
        imported = shared_core.import_model(file, "NPU", dict([ov.properties.hint.model(model)]))
    del model
    _check(imported, expected)


def test_an_object_that_is_not_a_model_is_refused(shared_core: Core, file: Path) -> None:
    with pytest.raises(PropertyError, match=r"MODEL_PTR: str given; expected an openvino\.Model"):
        shared_core.import_model(file, "NPU", {"MODEL_PTR": "model.xml"})


# ---------------------------------------------------------------- the wrong weights


def test_changed_weights_are_refused_naming_the_first_difference(
    shared_core: Core, ir: Path, file: Path
) -> None:
    weights = ir.with_suffix(".bin")
    content = bytearray(weights.read_bytes())
    content[-10] ^= 1  # the last constant
    weights.write_bytes(content)
    with pytest.raises(BlobError, match=r"constant 'second'.*blake3 [0-9a-f]{32}; expected [0-9a-f]{32}"):
        shared_core.import_model(file)
    content[10] ^= 1  # the first one as well
    weights.write_bytes(content)
    with pytest.raises(BlobError, match=r"constant 'first'.*other weights"):
        shared_core.import_model(file)


def test_a_short_weights_file_is_refused_naming_the_constant(shared_core: Core, ir: Path, file: Path) -> None:
    weights = ir.with_suffix(".bin")
    weights.write_bytes(weights.read_bytes()[:-8])
    size = weights.stat().st_size
    with pytest.raises(BlobError, match=rf"dense\.bin: constant 'second': {size} bytes; expected"):
        shared_core.import_model(file)


def test_a_longer_or_padded_weights_file_is_accepted(
    shared_core: Core, ir: Path, file: Path, expected: Any
) -> None:
    weights = ir.with_suffix(".bin")
    weights.write_bytes(weights.read_bytes() + bytes(5000))
    _check(shared_core.import_model(file), expected)


def _swapped(folder: Path) -> Path:
    first, second = tensors_of(dense_model()).values()
    return write_safetensors(folder / "swapped.safetensors", {"first": second, "second": first})


def _others(folder: Path) -> Path:
    (folder / "others").mkdir(exist_ok=True)
    return write_dense(folder / "others", seed=1)


OTHERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "safetensors, each in the place of the other": lambda folder: {"WEIGHTS_PATH": _swapped(folder)},
    "IR": lambda folder: {"WEIGHTS_PATH": _others(folder)},
    "weights of an IR": lambda folder: {"WEIGHTS_PATH": _others(folder).with_suffix(".bin")},
    "model in memory": lambda _: {ov.properties.hint.model: dense_model(seed=1)},
}


def test_other_weights_of_the_same_names_and_sizes_are_refused(
    shared_core: Core, file: Path, private_dir: Path
) -> None:
    for name, others in OTHERS.items():
        config = others(private_dir)
        for deferred in (False, True):
            config["NPU_DEFER_WEIGHTS_LOAD"] = deferred
            with case(name, deferred), pytest.raises(NpuError, match=r"constant 'first'.*other weights"):
                shared_core.import_model(file, "NPU", config).create_infer_request()


def test_a_missing_weights_file_is_named(shared_core: Core, file: Path, private_dir: Path) -> None:
    with pytest.raises(ModelError, match=r"gone\.bin: No such file"):
        shared_core.import_model(file, "NPU", {"WEIGHTS_PATH": private_dir / "gone.bin"})
    with pytest.raises(ModelError, match=r"gone\.onnx: no such file"):
        shared_core.import_model(file, "NPU", {"WEIGHTS_PATH": private_dir / "gone.onnx"})


def test_without_a_source_the_error_says_what_to_pass(shared_core: Core) -> None:
    compiled = shared_core.compile_model(dense_model(), "NPU", WEIGHTLESS)  # from memory
    stream = compiled.export_model()
    assert stream is not None
    del compiled
    with pytest.raises(BlobError, match=r"in 2 constants.*in no file.*WEIGHTS_PATH, or the model"):
        shared_core.import_model(stream)


# ---------------------------------------------------------------- models in memory, safetensors, ONNX


def test_a_model_from_memory_finds_its_weights_in_the_given_model(shared_core: Core, expected: Any) -> None:
    compiled = shared_core.compile_model(dense_model(), "NPU", WEIGHTLESS)
    stream = compiled.export_model()
    assert stream is not None
    assert len(stream.getvalue()) < SIZE * SIZE
    _check(shared_core.import_model(stream, "NPU", model=dense_model()), expected)


def test_safetensors_are_found_by_name(shared_core: Core, file: Path, ir: Path, expected: Any) -> None:
    ir.with_suffix(".bin").unlink()
    weights = write_safetensors(
        ir.with_name("w.safetensors"), {"noise": np.ones(7), **tensors_of(dense_model())}
    )
    _check(shared_core.import_model(file, "NPU", {"WEIGHTS_PATH": weights}), expected)


def test_safetensors_with_other_names_are_found_by_content(
    shared_core: Core, file: Path, ir: Path, expected: Any
) -> None:
    ir.with_suffix(".bin").unlink()
    tensors = {f"layer.{number}": array for number, array in enumerate(tensors_of(dense_model()).values())}
    weights = write_safetensors(ir.with_name("w.safetensors"), tensors)
    _check(shared_core.import_model(file, "NPU", {"WEIGHTS_PATH": weights}), expected)


def test_safetensors_lacking_a_constant_are_refused_by_its_name(
    shared_core: Core, file: Path, ir: Path
) -> None:
    tensors = tensors_of(dense_model())
    tensors["second"] = tensors["second"].astype(np.float16)
    weights = write_safetensors(ir.with_name("w.safetensors"), tensors)
    with pytest.raises(BlobError, match=rf"constant 'second' of {SIZE * SIZE * 4} bytes.*not in weights"):
        shared_core.import_model(file, "NPU", {"WEIGHTS_PATH": weights})
    tensors["second"] = np.zeros((SIZE, SIZE), np.float32)
    write_safetensors(weights, tensors)
    with pytest.raises(BlobError, match=r"constant 'second'.*expected"):
        shared_core.import_model(file, "NPU", {"WEIGHTS_PATH": weights})
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match="the file is truncated"):
        shared_core.import_model(file, "NPU", {"WEIGHTS_PATH": weights})


def test_a_model_compiled_with_safetensors_takes_its_weights_from_there(
    core: Core, daemon: Daemon, private_dir: Path, expected: Any
) -> None:
    model = dense_model()
    weights = write_safetensors(private_dir / "w.safetensors", tensors_of(model))
    compiled = core.compile_model(model, "NPU", WEIGHTLESS | {"WEIGHTS_PATH": weights})
    _check(compiled, expected)
    assert "w.safetensors" in Path(f"/proc/{daemon.engine().engine_pid}/maps").read_text()
    exported = compiled.export_model()
    with BlobFile.open(exported) as file:
        found = file.metadata().weights
    assert found is not None
    assert [source.path for source in found.sources] == [str(weights)]
    _check(core.import_model(exported), expected)


def test_weights_of_another_model_are_refused(shared_core: Core, private_dir: Path, ir: Path) -> None:
    weights = write_safetensors(private_dir / "w.safetensors", tensors_of(dense_model(seed=3)))
    with pytest.raises(ModelError, match=r"none of its 2 constants is in weights .*w\.safetensors"):
        shared_core.compile_model(dense_model(), "NPU", {"WEIGHTS_PATH": weights})
    with pytest.raises(ModelError, match="none of its"):
        shared_core.compile_model(ir, "NPU", {"WEIGHTS_PATH": weights})


def test_constants_that_the_file_lacks_are_copied(
    shared_core: Core, private_dir: Path, expected: Any
) -> None:
    tensors = tensors_of(dense_model())
    weights = write_safetensors(private_dir / "w.safetensors", {"first": tensors["first"]})
    compiled = shared_core.compile_model(dense_model(), "NPU", WEIGHTLESS | {"WEIGHTS_PATH": weights})
    _check(compiled, expected)
    exported = compiled.export_model()
    with pytest.raises(BlobError, match="in memory, not in a file"):
        shared_core.import_model(exported)
    _check(shared_core.import_model(exported, "NPU", model=dense_model()), expected)


def test_external_data_of_onnx_is_found_where_it_was(shared_core: Core, private_dir: Path) -> None:
    path = write_onnx(private_dir)
    compiled = shared_core.compile_model(path, "NPU", WEIGHTLESS)
    expected = compiled(INPUT)[0].copy()
    exported = compiled.export_model()
    with BlobFile.open(exported) as file:
        found = file.metadata().weights
    assert found is not None
    assert "dense.onnx.data" in {Path(source.path).name for source in found.sources}
    del compiled
    _check(shared_core.import_model(exported, "NPU", {"WEIGHTS_PATH": path}), expected)


# ---------------------------------------------------------------- exporting again


def test_an_import_can_be_exported_again_either_way(
    shared_core: Core, ir: Path, file: Path, expected: Any
) -> None:
    light = shared_core.import_model(file, "NPU", WEIGHTLESS)
    again = light.export_model()
    assert again is not None
    assert again.getvalue() == file.read_bytes()
    whole = shared_core.import_model(file).export_model()
    assert whole is not None
    ir.with_suffix(".bin").unlink()
    _check(shared_core.import_model(whole), expected)
