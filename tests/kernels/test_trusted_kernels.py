"""`softnpu daemon --kernels signed`: kernels whose digests are listed run, others are refused by name."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
import pytest

from softnpu.emulator.kernels import trust
from softnpu.emulator.openvino.kernels import operations
from softnpu.plugin import Core, NpuError, openvino_runtime
from softnpu.plugin.models import kernels
from tests.conftest import StartDaemon
from tests.support.cli import softnpu
from tests.support.kernels import elementwise

_X = np.ones((1, 8), np.float32)
_MODULE = elementwise("Twice")
_DIGEST = hashlib.sha256(_MODULE).hexdigest()
_REFUSED = (
    rf"own kernel tests\.Twice, sha256 {_DIGEST}; expected one of the digests in .*softnpu kernel trust"
)


@pytest.fixture(autouse=True)
def _config(private_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(private_dir / "config"))
    monkeypatch.setattr(openvino_runtime, "_extended", openvino_runtime.is_extended())
    yield
    kernels._added.clear()


def _model(core: Core, file: Path) -> ov.Model:
    file.write_bytes(_MODULE)
    core.add_extension(file)
    x: Any = op.parameter([1, 8], np.float32, "x")
    twice = operations.operation(operations.load(_MODULE))
    return ov.Model([op.result(twice([x.output(0)]).output(0))], [x], "twice")


def test_a_kernel_runs_while_it_is_listed(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon(kernels="signed")
    core = Core(daemon.socket)
    model = _model(core, tmp_path / "twice.wasm")
    raw = {"NPU_EXPORT_RAW_BLOB": "YES", "NPU_IMPORT_RAW_BLOB": "YES"}
    with pytest.raises(NpuError, match=_REFUSED):  # by the compiler, which would run its shapes
        core.compile_model(model, "NPU", {"NPU_DEFER_WEIGHTS_LOAD": "YES"})
    with pytest.raises(NpuError, match=_REFUSED):
        core.query_model(model)
    done = softnpu("kernel", "trust", tmp_path / "twice.wasm")
    assert f"twice.wasm, sha256 {_DIGEST}, added to" in done.words
    assert set(core.query_model(model).values()) == {"NPU"}
    compiled = core.compile_model(model, "NPU", raw)
    assert np.array_equal(compiled([_X])[0], 2 * _X)
    compiled.export_model(tmp_path / "model.blob")
    trust.add(_MODULE)[0].write_text("# nothing\n")
    assert np.array_equal(compiled([_X])[0], 2 * _X)  # what is loaded stays
    del compiled
    gc.collect()
    with pytest.raises(NpuError, match=_REFUSED):  # by the engine
        core.import_model(tmp_path / "model.blob", "NPU", raw)
    assert daemon.engine().restarts == 0
    core.unload_plugin()


def test_the_list_is_what_sha256sum_prints_with_remarks() -> None:
    path, is_new = trust.add(_MODULE)
    assert (path.read_text(), is_new) == (f"{_DIGEST}  tests.Twice\n", True)
    assert trust.add(_MODULE) == (path, False)
    other = elementwise("Other")
    path.write_text(f"# mine\n\n{_DIGEST.upper()} twice.wasm")
    trust.add(other)
    trust.check("signed", "model 'm'", [_MODULE, other])
    trust.check("all", "model 'm'", [elementwise("Third")])
    with pytest.raises(Exception, match=r"own kernel tests\.Third"):
        trust.check("signed", "model 'm'", [_MODULE, elementwise("Third")])


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        ("abc twice.wasm\n", 0o600, "line 1: 'abc'; expected a sha256"),
        (f"{_DIGEST}\n", 0o666, r"others may write it \(mode 666\)"),
        ("#" * ((1 << 20) + 1), 0o600, "more than 1048576 bytes"),
    ],
)
def test_a_list_that_cannot_be_trusted_trusts_nothing(content: str, mode: int, reason: str) -> None:
    (folder,) = trust.readable("signed")
    path = Path(folder, "trusted-kernels")
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(Exception, match=reason):
        trust.check("signed", "model 'm'", [_MODULE])


def test_an_unknown_policy_is_refused() -> None:
    done = softnpu("daemon", "--kernels", "some", "--foreground")
    assert "kernels: 'some'; expected all, signed, none" in done.misuse
