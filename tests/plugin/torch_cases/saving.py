"""Saved modules: one file, run by a process without torch, with the same numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from softnpu.plugin import BlobError, Core, ModelError, PropertyError
from softnpu.plugin import torch as npu
from softnpu.plugin.torch.module_signature import KEY, ModuleSignature
from tests.conftest import RunPython
from tests.plugin.torch_cases.modules import Boxes, Convolutions, Detections, Detector, Summed, Wide
from tests.support.daemon import LastingDaemon

WITHOUT_TORCH = """
import importlib.util
sys.modules["torch"] = None
from softnpu.plugin import Core
from softnpu.plugin import torch as npu
core = Core(given["socket"])
module = npu.load(given["path"], core=core)
"""


@pytest.fixture
def path(private_dir: Path) -> Path:
    return private_dir / "module.blob"


@pytest.fixture(scope="module")
def convolutions(lasting_daemon: LastingDaemon, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A saved module of convolutions."""
    path = tmp_path_factory.mktemp("saved") / "module.blob"
    with lasting_daemon.unchanged() as daemon:
        core = Core(daemon.socket)
        npu.compile(Convolutions(), torch.rand(1, 3, 8, 8), core=core).save(path)
        core.unload_plugin()
    return path.read_bytes()


@pytest.fixture
def saved(convolutions: bytes, path: Path) -> Path:
    """The saved module in the test's own file."""
    path.write_bytes(convolutions)
    return path


def test_a_process_without_torch_computes_the_same_numbers(
    shared_core: Core, path: Path, private_dir: Path, run_python: RunPython
) -> None:
    compiled = npu.compile(Convolutions(), torch.rand(1, 3, 8, 8), core=shared_core)
    npu.save(compiled, path)
    image = torch.rand(1, 3, 8, 8)
    np.save(private_dir / "image.npy", image.numpy())
    np.save(private_dir / "expected.npy", compiled(image).numpy())
    code = """
    image, expected = (np.load(given["folder"] + name) for name in ("/image.npy", "/expected.npy"))
    result = module(image)
    place = module.new_input("image")
    place[:] = image
    before = module.compiled_model.staged_bytes
    same = np.array_equal(module(place), expected)
    say([type(result).__name__, np.array_equal(result, expected), same, type(place).__name__,
         module.compiled_model.staged_bytes - before, repr(module)])
    """
    said = run_python(
        WITHOUT_TORCH + _flush(code),
        interpreter=True,
        socket=_socket(shared_core),
        path=str(path),
        folder=str(private_dir),
    )
    shown = "<CompiledModule Convolutions(image), platform 4000>"
    assert said == ["ndarray", True, True, "ndarray", 0, shown]


def test_given_classes_are_restored_and_others_become_named_tuples(
    shared_core: Core, path: Path, run_python: RunPython
) -> None:
    batch = {"left": torch.rand(2, 4), "pair": (torch.rand(2, 4), 2)}
    compiled = npu.compile(Detector(), (batch,), core=shared_core)
    compiled.save(path)
    found = npu.load(path, classes=[Detections, Boxes], core=shared_core)(batch)
    assert type(found) is Detections
    assert type(found.boxes) is Boxes
    assert torch.equal(found.boxes.corners, compiled(batch).boxes.corners)
    assert type(found.labels["best"]).__name__ == "max"
    code = """
    left, right = np.full((2, 4), 3, np.float32), np.ones((2, 4), np.float32)
    found = module({"left": left, "pair": [right, 2]})
    say([type(found).__name__, found._fields, type(found.boxes).__name__, found.boxes.corners.tolist(),
         [type(part).__name__ for part in found.features], found.features[1][1], list(found.labels),
         found.labels["best"].values.tolist(), found.count, found.note])
    """
    said = run_python(
        WITHOUT_TORCH + _flush(code), interpreter=True, socket=_socket(shared_core), path=str(path)
    )
    fields, features = ["boxes", "features", "labels", "count", "note"], ["ndarray", "tuple"]
    corners, best = [[4.0] * 4] * 2, [3.0, 3.0]
    assert said == ["Detections", fields, "Boxes", corners, features, None, ["best", 3], best, 7, None]


def test_dynamic_rows_stay_dynamic(shared_core: Core, path: Path) -> None:
    example = torch.rand(2, 4)
    dynamic = {"left": {0: 8}, "right": {0: 8}}
    npu.compile(Summed(), (example, example), dynamic=dynamic, core=shared_core).save(path)
    loaded = npu.load(path, core=shared_core)
    for rows in (5, 1):
        joined, count = loaded(np.ones((rows, 4), np.float32), np.zeros((rows, 4), np.float32))
        assert (count, joined.shape) == (rows, (rows, 8))


def test_the_file_alone_suffices(shared_core: Core, saved: Path, private_dir: Path) -> None:
    image = torch.rand(1, 3, 8, 8)
    loaded = npu.load(saved, core=shared_core)
    expected = loaded(image)
    moved = private_dir / "moved"
    shutil.move(saved, moved)
    assert torch.equal(npu.load(moved, core=shared_core)(image), expected)
    with pytest.raises(OSError, match="no/such"):
        loaded.save("/no/such/place")
    loaded.save(private_dir / "again")
    assert torch.equal(npu.load(private_dir / "again", core=shared_core)(image), expected)


def test_weights_do_not_pass_through_the_loading_process(
    shared_core: Core, saved: Path, run_python: RunPython
) -> None:
    module, path = Wide(4096), saved.with_name("large.blob")
    npu.compile(module, torch.rand(1, 4096), core=shared_core).save(path)
    assert path.stat().st_size > module.matrix.weight.nbytes == 64 << 20
    code = """
    import resource
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    core.available_devices
    small = npu.load(given["small"], core=core)
    small(np.zeros((1, 3, 8, 8), np.float32))
    before = peak()
    module = npu.load(given["path"], core=core)
    module(np.zeros((1, 4096), np.float32))
    say(peak() - before)
    """
    program = WITHOUT_TORCH.replace('module = npu.load(given["path"], core=core)\n', "") + _flush(code)
    grown = run_python(
        program, interpreter=True, socket=_socket(shared_core), path=str(path), small=str(saved)
    )
    assert grown < 16 << 20


def test_a_damaged_file_is_refused(shared_core: Core, saved: Path) -> None:
    whole = saved.read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], b"", bytes(100)):
        saved.write_bytes(damaged)
        with pytest.raises(BlobError, match=r"module\.blob"):
            npu.load(saved, core=shared_core)
    with pytest.raises((OSError, ModelError), match="nothing"):
        npu.load(saved.with_name("nothing"), core=shared_core)


def test_a_compiled_model_without_a_module_is_refused(shared_core: Core, digits: Path, path: Path) -> None:
    shared_core.compile_model(digits).export_model(path)
    with pytest.raises(ModelError, match=r"without the record of a torch module; .*Core\.import_model takes"):
        npu.load(path, core=shared_core)


def test_a_record_of_another_model_is_refused(shared_core: Core, saved: Path) -> None:
    compiled = shared_core.import_model(saved)
    form = msgspec.json.decode(compiled.extra[KEY])
    two = {"is": "sequence", "items": [{"is": "tensor", "index": number} for number in range(2)]}
    misnamed = {"is": "record", "name": "a b", "fields": ["x"], "items": [form["outputs"]]}
    changes: list[tuple[dict[str, Any], str]] = [
        ({"parameters": []}, "1 arguments, 0 parameters"),
        ({"inputs": [1]}, r"inputs \[1\].*a model with 1 and 1"),
        ({"outputs": two}, r"outputs \[0, 1\].*a model with 1 and 1"),
        ({"version": 2}, "version 2; expected 1"),
        ({"outputs": {"is": "program", "code": "1"}}, "program"),
        ({"outputs": misnamed}, "valid identifiers: 'a b'"),
    ]
    for change, said in changes:
        compiled.extra[KEY] = msgspec.json.encode(form | change).decode()
        compiled.export_model(saved)
        with pytest.raises(ModelError, match=said):
            npu.load(saved, core=shared_core)


def test_an_invalid_record_is_refused() -> None:
    for text in ("", "{", "[]", "{}", '{"name": 1}', "[" * 5000):
        with pytest.raises(ModelError, match="m: its record of a torch module cannot be read"):
            ModuleSignature.decode(text, "m")


def test_a_module_compiled_for_raw_blobs_cannot_be_saved(shared_core: Core, path: Path) -> None:
    image = torch.rand(1, 3, 8, 8)
    compiled = npu.compile(Convolutions(), image, config={"NPU_EXPORT_RAW_BLOB": True}, core=shared_core)
    with pytest.raises(PropertyError, match="NPU_EXPORT_RAW_BLOB=YES; expected NO"):
        compiled.save(path)
    assert not path.exists()


def _socket(core: Core) -> str:
    socket = core._devices.socket
    assert socket is not None
    return str(socket)


def _flush(code: str) -> str:
    """Return client code without its indentation."""
    return "\n".join(line.removeprefix("    ") for line in code.splitlines()) + "\n"
