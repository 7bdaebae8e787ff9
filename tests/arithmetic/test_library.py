"""The rounding extension: built once per release, never loaded for another, refused with a next step."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from softnpu.emulator.arithmetic import library
from softnpu.emulator.interface.result import Refused, ZeResult
from softnpu.plugin import CompileError, Core
from tests.conftest import DIGITS, StartDaemon

F16 = {"INFERENCE_PRECISION_HINT": "f16"}


def _refusal(path: Path) -> Refused:
    with pytest.raises(Refused) as caught:
        library.ensure(lambda: None)
    assert not list(path.glob("*")), "nothing is left of a build that failed"
    return caught.value


def test_a_failed_build_says_why_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.DIRECTORY, str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    info = _refusal(tmp_path).info
    assert (info.result, info.found) == (
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        "no no-such-compiler, which CXX names",
    )
    assert "apt install g++" in info.hint
    compiler = tmp_path.with_name(f"{tmp_path.name}-compiler")
    compiler.write_text("#!/bin/sh\necho fatal error: too old >&2\nexit 3\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    info = _refusal(tmp_path).info
    assert "ended with 3: fatal error: too old" in info.found
    monkeypatch.setenv(library.DIRECTORY, "/proc/none")
    with pytest.raises(Refused, match=r"/proc/none cannot be written.*SOFTNPU_EXTENSION_DIR"):
        library.ensure(lambda: None)


def test_a_library_writable_by_others_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "extensions"
    place.mkdir(0o700)
    monkeypatch.setenv(library.DIRECTORY, str(place))
    file = place / library.name()
    file.write_bytes(b"checked")
    file.chmod(0o600)
    assert library.find() == file
    place.chmod(0o777)
    with pytest.raises(Refused, match="others may write it"):
        library.find()
    place.chmod(0o700)
    file.chmod(0o666)
    with pytest.raises(Refused, match="others may write it"):
        library.find()
    file.unlink()
    file.symlink_to("/bin/true")
    with pytest.raises(Refused, match="Too many levels of symbolic links"):
        library.find()
    file.unlink()
    file.write_bytes(b"checked")
    file.chmod(0o600)
    with library.opened() as loaded:
        other = place / "other"
        other.write_bytes(b"evil")
        other.replace(file)
        assert Path(loaded).read_bytes() == b"checked", "the name is another file's now"


def test_each_release_and_source_has_its_own_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.name.cache_clear()
    own = library.name()
    names = {own}
    with monkeypatch.context() as patched:
        patched.setattr(ov, "get_version", lambda: "2026.9.0-1-other")
        library.name.cache_clear()
        names.add(library.name())
    source = tmp_path / "rounding.cpp"
    source.write_bytes(library.SOURCE.read_bytes() + b"// changed")
    with monkeypatch.context() as patched:
        patched.setattr(library, "SOURCE", source)
        library.name.cache_clear()
        names.add(library.name())
    library.name.cache_clear()
    assert len(names) == 3
    monkeypatch.setenv(library.DIRECTORY, str(tmp_path))
    for other in names - {own}:
        (tmp_path / other).write_bytes(b"never loaded")
    with pytest.raises(Refused, match="for this OpenVINO"):
        library.find()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_library_of_another_user_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.DIRECTORY, str(tmp_path))
    path = tmp_path / library.name()
    path.touch()
    os.chown(path, 12345, -1)
    with pytest.raises(Refused, match="belongs to user 12345"):
        library.find()


def test_a_daemon_builds_the_library_once_and_computes(
    start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(library.DIRECTORY, str(tmp_path / "extensions"))
    core = Core(start_daemon().socket)
    compiled = core.compile_model(DIGITS, "NPU", F16)
    (made,) = (tmp_path / "extensions").iterdir()
    assert made.name == library.name()
    built = made.stat().st_mtime_ns
    result = compiled([np.ones((1, 1, 8, 8), np.float32)])[0]
    np.testing.assert_array_equal(result, result.astype(np.float16).astype(np.float32))
    core.compile_model(DIGITS, "NPU", F16 | {"NPU_F16_OVERFLOW": "INFINITY"})
    assert made.stat().st_mtime_ns == built
    core.unload_plugin()


def test_without_a_compiler_f16_is_refused_and_f32_works(
    start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(library.DIRECTORY, str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    core = Core(start_daemon().socket)
    with pytest.raises(CompileError, match=r"no-such-compiler.*install g\+\+"):
        core.compile_model(DIGITS, "NPU", F16)
    core.compile_model(DIGITS, "NPU")
    core.unload_plugin()
