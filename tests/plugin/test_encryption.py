"""CACHE_ENCRYPTION_CALLBACKS: exported models and CACHE_DIR that a program encrypts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.plugin import BlobError, Core, NpuError, PropertyError
from tests.plugin.api.table import IMAGE, concat, relu


def _key(key: int) -> dict[str, Any]:
    def crypt(data: bytes) -> bytes:
        return bytes(np.frombuffer(data, np.uint8) ^ key)

    return {"CACHE_ENCRYPTION_CALLBACKS": [crypt, crypt]}


def _runs(compiled: Any) -> bool:
    return bool(np.array_equal(compiled([IMAGE])[0], np.maximum(IMAGE, 0)))


@pytest.fixture
def exported(shared_core: Core, private_dir: Path) -> Path:
    path = private_dir / "encrypted.blob"
    shared_core.compile_model(relu(), "NPU", _key(7)).export_model(path)
    assert b"SNPUBLOB" not in path.read_bytes()
    return path


def test_an_encrypted_model_needs_its_callbacks(shared_core: Core, exported: Path) -> None:
    for source in (exported, exported.open("rb"), exported.read_bytes()):
        assert _runs(shared_core.import_model(source, "NPU", _key(7)))
    with pytest.raises(BlobError, match=r"encrypted; expected CACHE_ENCRYPTION_CALLBACKS in the config"):
        shared_core.import_model(exported)
    with pytest.raises(BlobError, match=r"no exported model; expected the CACHE_ENCRYPTION_CALLBACKS that"):
        shared_core.import_model(exported, "NPU", _key(9))
    exported.write_bytes(exported.read_bytes()[1:])
    with pytest.raises(BlobError, match=r"encrypted bytes; expected \d+\. Copy it again"):
        shared_core.import_model(exported, "NPU", _key(7))


def test_other_models_are_imported_as_they_are(shared_core: Core) -> None:
    """As by OpenVINO's NPU plugin."""
    plain = shared_core.compile_model(relu()).export_model()
    assert plain is not None
    assert _runs(shared_core.import_model(plain, "NPU", _key(9)))
    raw = shared_core.compile_model(relu(), "NPU", {**_key(9), "NPU_EXPORT_RAW_BLOB": True}).export_model()
    assert _runs(shared_core.import_model(raw, "NPU", {**_key(9), "NPU_IMPORT_RAW_BLOB": True}))


@pytest.mark.parametrize("mode", ["OPTIMIZE_SPEED", "OPTIMIZE_SIZE"])
def test_a_wrong_key_of_cache_dir_ends_in_a_compilation(
    shared_core: Core, private_dir: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv(ENV_CACHE_DIR, str(private_dir / "driver"))
    config = {"CACHE_DIR": str(private_dir / "plugin"), "CACHE_MODE": mode}
    found = []
    for key in ({}, _key(7), _key(7), _key(9), {}):
        compiled = shared_core.compile_model(relu(), "NPU", config | key)
        assert _runs(compiled)
        (entry,) = (private_dir / "plugin").glob("*.blob")
        found.append((compiled.get_property("LOADED_FROM_CACHE"), b"SNPUBLOB" in entry.read_bytes()))
    assert found == [(False, True), (False, False), (True, False), (False, False), (False, True)]


def test_the_driver_keeps_no_model_that_is_encrypted(
    shared_core: Core, private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_CACHE_DIR, str(private_dir / "driver"))
    for config, expected in ((_key(7), 0), ({}, 1)):
        shared_core.compile_model(concat(), "NPU", config)
        assert len([path for path in (private_dir / "driver").rglob("*") if path.stat().st_size > 1000]) == (
            expected
        ), config


def _fails(_: bytes) -> bytes:
    raise ValueError("no key")


@pytest.mark.parametrize(
    ("callback", "reason"), [(_fails, "raised ValueError: no key"), (lambda _: None, "returned NoneType")]
)
def test_a_callback_that_fails_is_named(
    shared_core: Core, exported: Path, private_dir: Path, callback: Callable[[bytes], Any], reason: str
) -> None:
    config = {"CACHE_ENCRYPTION_CALLBACKS": [callback, callback]}
    compiled = shared_core.compile_model(relu(), "NPU", {**config, "CACHE_DIR": str(private_dir / "cache")})
    assert _runs(compiled)  # a cache only saves time
    assert not list((private_dir / "cache").glob("*.blob"))
    with pytest.raises(NpuError, match=f"export, encrypt: the callback {reason}"):
        compiled.export_model()
    with pytest.raises(BlobError, match=f"decrypt: the callback {reason}"):
        shared_core.import_model(exported, "NPU", config)


@pytest.mark.parametrize("given", ["bytes", [bytes], [bytes, 1], bytes])
def test_callbacks_are_two_functions(shared_core: Core, given: Any) -> None:
    with pytest.raises(PropertyError, match="expected a list of two functions that take and return bytes"):
        shared_core.compile_model(relu(), "NPU", {"CACHE_ENCRYPTION_CALLBACKS": given})


def test_callbacks_can_only_be_written(shared_core: Core) -> None:
    core = shared_core
    assert core.get_property("NPU", "CACHE_ENCRYPTION_CALLBACKS", _key(7)) is None
    assert core.get_property("NPU", "SUPPORTED_PROPERTIES")["CACHE_ENCRYPTION_CALLBACKS"] == "WO"
