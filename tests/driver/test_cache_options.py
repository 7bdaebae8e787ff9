"""Which cache the environment asks for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from softnpu.driver.cache_options import DEFAULT_LIMIT, cache_options_from_environment
from softnpu.emulator.interface import messages
from softnpu.emulator.interface.messages import CacheOptions

HOME = {"HOME": "/home/me"}


@pytest.mark.parametrize(
    ("environ", "directory"),
    [
        ({"ZE_INTEL_NPU_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", **HOME}, "/a"),
        ({"XDG_CACHE_HOME": "/b", **HOME}, "/b/ze_intel_npu_cache"),
        ({"XDG_CACHE_HOME": "", **HOME}, "/home/me/.cache/ze_intel_npu_cache"),
        (HOME, "/home/me/.cache/ze_intel_npu_cache"),
    ],
)
def test_the_first_variable_that_is_set_decides(environ: dict[str, str], directory: str) -> None:
    assert cache_options_from_environment(environ) == CacheOptions(directory=directory, limit=DEFAULT_LIMIT)


def test_a_directory_that_is_set_but_empty_turns_the_cache_off() -> None:
    assert cache_options_from_environment({"ZE_INTEL_NPU_CACHE_DIR": "", **HOME}) is None


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}])
def test_without_any_variable_it_is_below_the_working_directory(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = cache_options_from_environment(environ)
    assert options is not None
    assert options.directory == str(tmp_path / ".cache" / "ze_intel_npu_cache")


def test_a_relative_directory_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = cache_options_from_environment({"ZE_INTEL_NPU_CACHE_DIR": "here/../there"})
    assert options is not None
    assert options.directory == str(tmp_path / "there")


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("256", 256),
        (" 256 ", 256),
        ("0", 0),
        ("", 0),
        ("-1", 0),
        ("4GiB", 0),
        ("0x100", 0),
        ("1.5", 0),
        ("\u0663", 0),
        ("9" * 18, int("9" * 18)),
        ("9" * 40, 0),
    ],
)
def test_the_size_is_a_number_of_bytes_and_anything_else_is_zero(text: str, limit: int) -> None:
    options = cache_options_from_environment({"ZE_INTEL_NPU_CACHE_SIZE": text, **HOME})
    assert options is not None
    assert options.limit == limit
    request = messages.GraphCreate(context=1, name="n", xml_length=1, cache=options)
    assert messages.decode_request(messages.encode(request)) == request


def test_a_directory_that_no_message_can_carry_is_none() -> None:
    assert cache_options_from_environment({"ZE_INTEL_NPU_CACHE_DIR": os.fsdecode(b"/a\xff")}) is None
