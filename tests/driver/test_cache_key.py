"""Keys of the cache of compiled models, and the cache that the environment selects."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import msgspec
import openvino as ov
import pytest

from softnpu.driver.cache_options import DEFAULT_LIMIT, cache_options_from_environment
from softnpu.emulator.blob.constant_digests import constant_digest
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.compiler import digests
from softnpu.emulator.compiler.digests import WeightDigests
from softnpu.emulator.disk_cache import cache_key
from softnpu.emulator.disk_cache.cache_key import Configuration
from softnpu.emulator.interface import messages
from softnpu.emulator.interface.messages import CacheOptions, WeightSource

pytestmark = pytest.mark.quick

BASE = Configuration(
    name="net", platform="4000", compiler="c 1.0", config={"A": "1", "B": "2"}, shapes={"x": (1, 3)}
)
OTHERS: list[dict[str, object]] = [
    {"name": "other"}, {"platform": "5010"}, {"compiler": "c 1.1"}, {"openvino": "0.0"}, {"container": "9.9"},
    {"host": "another"}, {"config": {"A": "1", "B": "3"}}, {"config": {"A": "1"}}, {"shapes": {"x": (3, 1)}},
    {"shapes": {"y": (1, 3)}}, {"shapes": {}}, {"flags": 1},
]  # fmt: skip


def test_each_part_changes_the_key_and_is_named_as_the_difference() -> None:
    assert {name for change in OTHERS for name in change} == set(Configuration.__struct_fields__)
    for change in OTHERS:
        other = msgspec.structs.replace(BASE, **change)
        assert other.encoded() != BASE.encoded()
        assert len(cache_key.differences(BASE.description(), other.description())) in {1, 2}
    other = msgspec.structs.replace(BASE, config={"B": "2", "A": "1"})
    assert other.encoded() == BASE.encoded(), "the order of options plays no part"


def test_xml_and_weights_are_digested_separately() -> None:
    parts = ((b"xml", b""), (b"xm", b"l"), (b"xml", b"w"), (b"xmlw", b""))
    assert len({cache_key.input_digest(xml, weights) for xml, weights in parts}) == 4


@pytest.mark.parametrize("large", [0, 1 << 60], ids=["by constant", "whole"])
def test_weights_are_digested_with_every_constant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(digests, "LARGE", large)
    path = tmp_path / "weights"
    xml = b"".join(b'<layer type="Const"><data offset="%d" size="32"/></layer>' % at for at in (64, 96))
    content = bytes(range(256)) * 16

    def digest(content: bytes, xml: bytes = xml) -> bytes:
        path.write_bytes(content)
        with open(path, "rb") as file:
            space = WeightSpace([WeightSource(offset=0, length=len(content))], [file.fileno()], "test")
        known = WeightDigests(space)
        whole = known.of_model(xml, lambda _: None)
        assert known.of(64, 32) == constant_digest(memoryview(content)[64:96])
        return whole

    first = digest(content)
    assert digest(content) == first
    for at in (64, 95, 96, 127):
        changed = content[:at] + b"\xff" + content[at + 1 :]
        assert digest(changed) != first, at
    assert digest(content + b"more") != first
    beside = content[:200] + b"\0" + content[201:]
    assert (digest(beside) == first) is (large == 0), "what is no constant changes no result"


def test_versions_are_read_without_loading_openvino() -> None:
    program = """
import sys
from softnpu.emulator.disk_cache import cache_key
print(cache_key.openvino_version(), "openvino" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True
    )
    version, loaded = done.stdout.split()
    assert loaded == "False"
    assert ov.get_version().startswith(version)


def test_an_openvino_unknown_to_pip_is_identified_by_path_and_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr("importlib.metadata.version", unknown)
    cache_key.openvino_version.cache_clear()
    assert cache_key.openvino_version().partition(" ")[0].endswith("openvino/__init__.py")
    cache_key.openvino_version.cache_clear()


def test_the_environment_chooses_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home, name = {"HOME": "/home/me"}, "ze_intel_npu_cache"
    for environ, directory in (
        ({"ZE_INTEL_NPU_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", **home}, "/a"),
        ({"ZE_INTEL_NPU_CACHE_DIR": "here/../there"}, f"{tmp_path}/there"),
        ({"XDG_CACHE_HOME": "/b", **home}, f"/b/{name}"),
        ({"XDG_CACHE_HOME": "", **home}, f"/home/me/.cache/{name}"),
        ({"HOME": ""}, f"{tmp_path}/.cache/{name}"),
        ({}, f"{tmp_path}/.cache/{name}"),
    ):
        assert cache_options_from_environment(environ) == CacheOptions(
            directory=directory, limit=DEFAULT_LIMIT
        )
    for off in ("", os.fsdecode(b"/a\xff")):
        assert cache_options_from_environment({"ZE_INTEL_NPU_CACHE_DIR": off, **home}) is None


def test_the_size_is_a_number_of_bytes_or_zero() -> None:
    numbers = {"256": 256, " 256 ": 256, "9" * 18: int("9" * 18)}
    others = ("", "-1", "4GiB", "0x100", "1.5", "\u0663", "9" * 40)
    for text, limit in {**numbers, **dict.fromkeys(others, 0)}.items():
        options = cache_options_from_environment({"ZE_INTEL_NPU_CACHE_SIZE": text, "HOME": "/home/me"})
        assert options is not None
        assert options.limit == limit
        request = messages.GraphCreate(context=1, name="n", xml_length=1, cache=options)
        assert messages.decode_request(messages.encode(request)) == request
