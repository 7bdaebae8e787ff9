"""Compatibility checks before an import: requirements as a line of text, SUPPORTED or not, and why."""

from __future__ import annotations

import io
from pathlib import Path

import openvino as ov
import pytest
from openvino.properties import CompatibilityCheck

from softnpu.emulator.blob import container
from softnpu.emulator.compiler.options import NEWEST_OPSET
from softnpu.plugin import BlobError, Core, PropertyError
from softnpu.plugin.exported.blob_file import BlobFile
from softnpu.plugin.exported.compatibility import Compatibility, Host, check
from tests.support.cases import case
from tests.support.daemon import Daemon

NOW = f"{container.MAJOR}.{container.MINOR}"
GOOD = f"platform=4000;blob={NOW};precision=f32;opset=13"
HOST = Host("4000", lambda: ["FP32"])


def test_requirements_are_reported_by_model_and_file(
    shared_core: Core, digits: Path, private_dir: Path
) -> None:
    compiled = shared_core.compile_model(digits)
    told = compiled.get_property(ov.properties.runtime_requirements)
    assert told == f"platform=4000;blob={NOW};precision=f32;opset=8"
    compiled.export_model(private_dir / "digits.blob")
    with BlobFile.open(private_dir / "digits.blob") as file:
        assert file.metadata().requirements == told
    assert shared_core.import_model(private_dir / "digits.blob").get_property("RUNTIME_REQUIREMENTS") == told


def test_the_property_answers_as_openvino_names_it(shared_core: Core) -> None:
    def ask(requirements: str) -> CompatibilityCheck:
        name = ov.properties.compatibility_check
        return shared_core.get_property("NPU", name, {ov.properties.runtime_requirements: requirements})

    assert ask(GOOD) == CompatibilityCheck.SUPPORTED
    assert ask(GOOD.replace("4000", "3720")) == CompatibilityCheck.UNSUPPORTED
    assert ask("nonsense") == CompatibilityCheck.UNSUPPORTED
    assert ask("") == CompatibilityCheck.NOT_APPLICABLE
    assert shared_core.get_property("NPU", "COMPATIBILITY_CHECK") == CompatibilityCheck.NOT_APPLICABLE
    with pytest.raises(PropertyError, match=r"RUNTIME_REQUIREMENTS: int; expected text"):
        shared_core.get_property("NPU", "COMPATIBILITY_CHECK", {"RUNTIME_REQUIREMENTS": 1})


def test_the_reason_names_the_missing_requirement() -> None:
    cases: list[tuple[str, str]] = [
        (
            GOOD.replace("4000", "3720"),
            "platform=3720: the device has platform 4000; compile the model for it",
        ),
        (GOOD.replace(f"blob={NOW}", "blob=2.0"), "blob=2.0: blobs of 1.0 to"),
        (GOOD.replace(f"blob={NOW}", "blob=1.99"), "blob=1.99: blobs of 1.0 to"),
        (GOOD.replace(f"blob={NOW}", "blob=new"), "blob=new: blobs of"),
        (GOOD.replace("f32", "bf16"), "precision=bf16: this host's processor cannot compute in it"),
        (GOOD.replace("f32", "f12"), "precision=f12: no precision"),
        (GOOD.replace("13", str(NEWEST_OPSET + 1)), f"opset={NEWEST_OPSET + 1}: operations up to opset"),
        (GOOD.replace("13", "many"), "opset=many: operations up to"),
        (GOOD + ";tiles=99", "tiles=99: tiles is not known to this version"),
        ("platform=4000", "requirements without blob, precision, opset"),
        ("", "no list of requirements"),
        ("platform", "no list of requirements"),
        ("meta=1;;x", "no list of requirements"),
    ]
    for requirements, reason in cases:
        with case(requirements, reason):
            found = check(requirements, HOST)
            assert not found
            assert reason in found.reason


def test_the_processor_is_queried_only_if_it_matters() -> None:
    def never() -> list[str]:
        raise AssertionError("asked")

    assert check(GOOD, Host("4000", never))


def test_a_file_is_checked_without_loading_anything(
    core: Core, daemon: Daemon, digits: Path, private_dir: Path
) -> None:
    path = private_dir / "digits.blob"
    core.compile_model(digits).export_model(path)
    for source in (path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes())):
        assert core.check_compatibility(source) == Compatibility(True, core.check_compatibility(path).reason)
    raw = bytes(core.compile_model(digits)._executable.graph.get_native_binary2())
    assert core.check_compatibility(raw)
    before = daemon.engine()
    core.check_compatibility(path)
    assert daemon.engine().graphs == before.graphs


def test_a_damaged_file_is_not_supported_and_a_missing_one_is_an_error(
    shared_core: Core, digits: Path, private_dir: Path
) -> None:
    content = (shared_core.compile_model(digits).export_model() or io.BytesIO()).getvalue()
    changed = bytearray(content)
    changed[-100] ^= 1
    for source, reason in (
        (content[:-1], "without metadata"),
        (bytes(changed), "checksum"),
        (b"\x7fELF" + bytes(999), "an ELF file"),
        (b"SNPUBLOB" + bytes(56), "without metadata"),
    ):
        found = shared_core.check_compatibility(source)
        assert not found
        assert reason in found.reason
    with pytest.raises(BlobError, match="No such file"):
        shared_core.check_compatibility(private_dir / "nothing.blob")
    with pytest.raises(PropertyError, match=r"NPU\.7"):
        shared_core.check_compatibility(content, "NPU.7")
