"""What makes a key: everything that changes the result, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import msgspec
import pytest

from softnpu.emulator.compiler.model_cache import cache_key
from softnpu.emulator.compiler.model_cache.cache_key import Configuration

BASE = Configuration(
    name="net", platform="4000", compiler="c 1.0", config={"A": "1", "B": "2"}, shapes={"x": (1, 3)}
)
OTHERS: list[dict[str, object]] = [
    {"name": "other"},
    {"platform": "5010"},
    {"compiler": "c 1.1"},
    {"openvino": "0.0"},
    {"container": "9.9"},
    {"host": "another"},
    {"config": {"A": "1", "B": "3"}},
    {"config": {"A": "1"}},
    {"shapes": {"x": (3, 1)}},
    {"shapes": {"y": (1, 3)}},
    {"shapes": {}},
    {"flags": 1},
]


@pytest.mark.parametrize("change", OTHERS, ids=str)
def test_each_part_changes_the_key_and_is_named_as_the_difference(change: dict[str, object]) -> None:
    other = msgspec.structs.replace(BASE, **change)
    assert other.encoded() != BASE.encoded()
    assert len(cache_key.differences(BASE.description(), other.description())) in {1, 2}


def test_every_field_is_covered_above() -> None:
    assert {name for change in OTHERS for name in change} == set(Configuration.__struct_fields__)


def test_the_order_of_options_does_not_change_the_key() -> None:
    other = msgspec.structs.replace(BASE, config={"B": "2", "A": "1"})
    assert other.encoded() == BASE.encoded()
    assert cache_key.differences(BASE.description(), other.description()) == []


def test_the_input_is_xml_and_weights_and_neither_runs_into_the_other() -> None:
    digests = {
        cache_key.input_digest(b"xml", b""),
        cache_key.input_digest(b"xm", b"l"),
        cache_key.input_digest(b"xml", b"w"),
        cache_key.input_digest(b"xmlw", b""),
    }
    assert len(digests) == 4


def test_the_versions_are_known_without_loading_openvino() -> None:
    program = """
import sys
from softnpu.emulator.compiler import cache_key
print(cache_key.openvino_version(), "openvino" in sys.modules)
import openvino
print(openvino.get_version())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True
    )
    ours, real = done.stdout.splitlines()
    version, loaded = ours.split()
    assert loaded == "False"
    assert real.startswith(version)


def test_an_openvino_that_pip_does_not_know_is_told_apart_by_place_and_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr("importlib.metadata.version", unknown)
    cache_key.openvino_version.cache_clear()
    assert cache_key.openvino_version().partition(" ")[0].endswith("openvino/__init__.py")
    cache_key.openvino_version.cache_clear()


def test_the_host_is_always_the_same_on_one_machine() -> None:
    first = cache_key.host()
    cache_key.host.cache_clear()
    assert cache_key.host() == first
