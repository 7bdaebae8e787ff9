"""Variables are read in one form and within bounds, and refused by their name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from softnpu.emulator.daemon import saved_environment
from softnpu.emulator.interface import environment
from softnpu.emulator.interface.environment import ENV_IDLE_S, ENV_SAVED_ENV, ENV_SPIN_US
from softnpu.emulator.interface.result import Refused, ZeResult
from softnpu.emulator.supervisor.settings import DaemonSettings

_NO_NUMBERS = [
    "-1", "+1", " 1", "1 ", "1_000", "1e3", "0x10", "nan", "inf", "soon", "5us", "1.", ".5", "1,5", "1\n",
    "\u0661\u0662",  # digits, of another script
    "\u00b2",
    "\uff11",
    "9" * 21,
    "9" * 5000,
]  # fmt: skip


def _refused(call: Callable[[], object], variable: str) -> None:
    with pytest.raises(Refused) as caught:
        call()
    info = caught.value.info
    assert (info.result, info.object) == (ZeResult.ERROR_INVALID_ARGUMENT, variable)
    assert len(str(info)) < 300


@pytest.mark.parametrize(("text", "value"), [("", 50), ("0", 0), ("007", 7), ("1000000", 1_000_000)])
def test_a_busy_wait_is_whole_microseconds(monkeypatch: pytest.MonkeyPatch, text: str, value: int) -> None:
    monkeypatch.setenv(ENV_SPIN_US, text)
    assert environment.spin_us() == value


@pytest.mark.parametrize("text", [*_NO_NUMBERS, "0.5", "1000001", "9" * 20])
def test_what_is_no_busy_wait_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(ENV_SPIN_US, text)
    _refused(environment.spin_us, ENV_SPIN_US)


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 60), ("0", 0), ("0.0", 0), ("0.1", 0.1), ("1", 1), ("2.50", 2.5), ("604800", 604800)],
)
def test_an_idle_time_is_seconds(monkeypatch: pytest.MonkeyPatch, text: str, value: float) -> None:
    monkeypatch.setenv(ENV_IDLE_S, text)
    assert environment.idle_s(60) == value


@pytest.mark.parametrize("text", [*_NO_NUMBERS, "1e-9", "0.000000001", "0.09", "604800.1", "0." + "0" * 19])
def test_what_is_no_idle_time_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(ENV_IDLE_S, text)
    _refused(lambda: environment.idle_s(60), ENV_IDLE_S)


def test_the_document_has_the_bounds() -> None:
    text = (Path(__file__).parents[2] / "docs" / "interface.md").read_text()
    rows = dict(re.findall(r"^\| `(SOFTNPU_\w+)` \| `.*` \| (.*) \|$", text, re.MULTILINE))
    assert rows == {
        ENV_SPIN_US: f"0 to {environment.MAX_SPIN_US}",
        ENV_IDLE_S: f"0, or {environment.MIN_IDLE_S:g} to {environment.MAX_IDLE_S:.0f}",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spin_us", -1),
        ("spin_us", 1_000_001),
        ("idle_timeout_s", 1e-9),
        ("idle_timeout_s", float("nan")),
        ("idle_timeout_s", 1e9),
        ("command_limit_s", float("nan")),
        ("command_limit_s", float("inf")),
    ],
)
def test_settings_have_the_same_bounds(name: str, value: float) -> None:
    settings = DaemonSettings(socket="/nowhere/npu.sock", **{name: value})  # type: ignore[arg-type]
    option = name.replace("_", "-").removesuffix("-s")
    with pytest.raises(Refused, match=f"--{option}"):
        settings.check()


@pytest.mark.parametrize(
    "text",
    [
        "[1]", "1", "null", '"a"', "{", "{} {}", '{"a":1}', '{"a":null}', '{"":"x"}', '{"a=b":"x"}',
        '{"a":"\\u0000"}', '{"a":"\\ud800"}', "[" * 100_000,
    ],
)  # fmt: skip
def test_what_run_does_not_write_is_refused(text: str) -> None:
    _refused(lambda: saved_environment({ENV_SAVED_ENV: text}), ENV_SAVED_ENV)


def test_what_run_writes_comes_back() -> None:
    before = {"A": "1", "B": "", "C": "\udcff"}
    assert saved_environment({"B": "2", "D": "4", ENV_SAVED_ENV: json.dumps(before)}) == {
        "A": "1",
        "C": "\udcff",
        "D": "4",
    }
    assert saved_environment({"A": "1", ENV_SAVED_ENV: ""}) == {"A": "1"}
