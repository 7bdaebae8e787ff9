"""ONNX files that the compiler reads itself: the program reads none of them, and sees no difference."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openvino as ov
import pytest

from softnpu.driver import ZeError, graph_creation
from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.emulator.blob.container import BlobReader, ConstantReference, Section, WeightsReference, pack
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.plugin import CompiledModel, CompileError, Core, ModelError, openvino_runtime
from softnpu.plugin.exported.strip_weights import strip
from tests.plugin.weights_files import INPUT, write_onnx
from tests.support.daemon import Daemon

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
_GENERATED = re.compile(r"_\d+$")
AS_IR = {**F32, "NPU_BATCH_MODE": "COMPILER"}


@pytest.fixture(autouse=True)
def _cache(private_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_CACHE_DIR, str(private_dir / "cache"))


def check(core: Core, path: Path, config: dict[str, Any] = F32, **more: Any) -> CompiledModel:
    """Compile, and compare with OpenVINO's CPU device."""
    compiled = core.compile_model(path, "NPU", config, **more)
    expected = ov.Core().compile_model(path, "CPU", F32)(INPUT)[0]
    np.testing.assert_array_equal(compiled(INPUT)[0], expected)
    return compiled


def test_the_program_does_not_read_the_file(shared_core: Core, private_dir: Path, reads: list[Path]) -> None:
    path = write_onnx(private_dir, external=False)
    first = check(shared_core, path)
    other = path.rename(private_dir / "other name.onnx")
    second = check(shared_core, other, {**F32, "CACHE_DIR": private_dir / "own"})
    third = check(shared_core, other, {**F32, "CACHE_DIR": private_dir / "own"})
    assert [each.get_property("LOADED_FROM_CACHE") for each in (first, second, third)] == [False, False, True]
    assert third.get_property("NETWORK_NAME") == "other name"
    assert reads == []


def test_its_next_start_finds_it_in_the_drivers_cache(shared_core: Core, private_dir: Path) -> None:
    path = write_onnx(private_dir, external=False)
    found = [check(shared_core, path).get_property("LOADED_FROM_CACHE") for _ in range(2)]
    data = bytearray(path.read_bytes())
    at = data.index(_weights_of(path))
    data[at : at + 4] = np.float32(2.5).tobytes()
    path.write_bytes(data)
    assert [*found, check(shared_core, path).get_property("LOADED_FROM_CACHE")] == [False, True, False]


def _weights_of(path: Path) -> bytes:
    import onnx

    return bytes(onnx.load(path).graph.initializer[0].raw_data)


def test_it_is_the_model_that_it_is_as_an_ir(shared_core: Core, private_dir: Path, reads: list[Path]) -> None:
    path = write_onnx(private_dir, external=False, batch="many")
    shapes = {"data": INPUT.shape}
    own, as_ir = (check(shared_core, path, config, shapes=shapes) for config in (F32, AS_IR))
    assert reads == [path]

    def described(compiled: CompiledModel) -> list[object]:
        ports = [*compiled.inputs, *compiled.outputs]
        names = [
            (port.get_names(), _GENERATED.sub("", port.node.friendly_name), str(port.partial_shape))
            for port in ports
        ]
        return [*names, compiled.get_property("NETWORK_NAME"), compiled.get_property("NPU_BATCH_MODE")]

    assert described(own)[:-1] == described(as_ir)[:-1]
    exported = shared_core.import_model(own.export_model())
    assert described(exported) == described(own)
    np.testing.assert_array_equal(exported(INPUT)[0], own(INPUT)[0])


def _batch(core: Core, folder: Path) -> None:
    path = write_onnx(folder, external=False, batch="many")
    assert core.compile_model(path, "NPU", F32).get_property("NPU_BATCH_MODE") == "PLUGIN"


def _external(core: Core, folder: Path) -> None:
    check(core, write_onnx(folder))


def _weightless(core: Core, folder: Path) -> None:
    compiled = check(core, write_onnx(folder, external=False), {**F32, "ENABLE_WEIGHTLESS": True})
    exported = compiled.export_model()
    assert exported is not None
    assert len(exported.getvalue()) < INPUT.size**2 * 4


@pytest.mark.parametrize("compile_one", [_batch, _external, _weightless])
def test_openvino_reads_it_here_where_the_program_needs_more(
    shared_daemon: Daemon,
    shared_core: Core,
    private_dir: Path,
    reads: list[Path],
    compile_one: Callable[[Core, Path], None],
) -> None:
    failures = shared_daemon.status().engines[0].build_failures
    compile_one(shared_core, private_dir)
    assert reads == [private_dir / "dense.onnx"]
    assert shared_daemon.status().engines[0].build_failures == failures


def test_a_program_with_extensions_or_settings_of_openvino_reads_it(
    shared_core: Core, private_dir: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_onnx(private_dir, external=False)
    with monkeypatch.context() as patch:
        patch.setattr(openvino_runtime, "_extended", True)
        check(shared_core, path)
    monkeypatch.setenv("ONNX_ANYTHING", "1")
    check(shared_core, path)
    assert reads == [path, path]


@pytest.mark.parametrize("found", ["required field 'format'", "another daemon"])
def test_a_daemon_that_does_not_take_the_file_gets_an_ir(
    shared_core: Core, private_dir: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    create = graph_creation.compile_source
    path = write_onnx(private_dir, external=False)

    def older(context: Any, source: Any, **more: Any) -> Any:
        if source.format:
            raise ZeError(
                "", ErrorInfo(result=int(ZeResult.ERROR_UNSUPPORTED_FEATURE), object="", found=found)
            )
        return create(context, source, **more)

    monkeypatch.setattr("softnpu.plugin.compilation.compile_source", older)
    if "format" in found:
        check(shared_core, path)
        assert reads == [path]
    else:
        with pytest.raises(CompileError, match=found):
            shared_core.compile_model(path)


def test_errors_are_those_of_the_program_that_reads_it(shared_core: Core, private_dir: Path) -> None:
    path = write_onnx(private_dir, external=False)
    with pytest.raises(CompileError, match="no such input"):
        shared_core.compile_model(path, shapes={"picture": [1, 2]})
    path.write_bytes(path.read_bytes().replace(b"MatMul", b"MatMux"))
    with pytest.raises(ModelError, match=r"dense\.onnx: OpenVINO cannot read it: .*MatMux"):
        shared_core.compile_model(path)


@pytest.mark.parametrize(("length", "offsets"), [(1 << 10, ()), (2 << 20, (0,))])
def test_an_import_copies_few_constants_and_leaves_many_in_the_file(
    length: int, offsets: tuple[int, ...]
) -> None:
    constant = ConstantReference(name="weights", offset=0, length=length, digest=bytes(16), embedded=0)
    reference = WeightsReference(size=length, constants=(constant,))
    sections = {
        Section.METADATA: b"",
        Section.WEIGHTS_REFERENCE: msgspec.msgpack.encode(reference),
        Section.WEIGHTS: bytes(length),
    }
    stripped = strip(BlobReader(pack(sections)), keep={0})
    assert stripped.offsets == offsets
    assert BlobReader(stripped.data).has(Section.WEIGHTS) is not bool(offsets)
