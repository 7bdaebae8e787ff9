"""Environment variables: one form, bounds, and refusal by name."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from softnpu.emulator.daemon import saved_environment
from softnpu.emulator.interface import environment
from softnpu.emulator.interface.environment import ENV_IDLE_S, ENV_SAVED_ENV, ENV_SPIN_US
from softnpu.emulator.interface.result import Refused, ZeResult

pytestmark = pytest.mark.quick

_NO_NUMBERS = [
    "-1", "+1", " 1", "1 ", "1_000", "1e3", "0x10", "nan", "inf", "soon", "5us", "1.", ".5", "1,5", "1\n",
    "\u0661\u0662",  # digits, of another script
    "\u00b2", "\uff11", "9" * 21, "9" * 5000,
]  # fmt: skip


def _assert_refused(call: Callable[[], object], variable: str) -> None:
    with pytest.raises(Refused) as caught:
        call()
    info = caught.value.info
    assert (info.result, info.object) == (ZeResult.ERROR_INVALID_ARGUMENT, variable)
    assert len(str(info)) < 300


def test_a_busy_wait_is_whole_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, value in {"": 50, "0": 0, "007": 7, "1000000": 1_000_000}.items():
        monkeypatch.setenv(ENV_SPIN_US, text)
        assert environment.spin_us() == value
    for text in [*_NO_NUMBERS, "0.5", "1000001", "9" * 20]:
        monkeypatch.setenv(ENV_SPIN_US, text)
        _assert_refused(environment.spin_us, ENV_SPIN_US)


def test_an_idle_time_is_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    right = {"": 60, "0": 0, "0.0": 0, "0.1": 0.1, "1": 1, "2.50": 2.5, "604800": 604800}
    for text, value in right.items():
        monkeypatch.setenv(ENV_IDLE_S, text)
        assert environment.idle_s(60) == value
    for text in [*_NO_NUMBERS, "1e-9", "0.000000001", "0.09", "604800.1", "0." + "0" * 19]:
        monkeypatch.setenv(ENV_IDLE_S, text)
        _assert_refused(lambda: environment.idle_s(60), ENV_IDLE_S)


@pytest.mark.parametrize(
    "text",
    [
        "[1]", "1", "null", '"a"', "{", "{} {}", '{"a":1}', '{"a":null}', '{"":"x"}', '{"a=b":"x"}',
        '{"a":"\\u0000"}', '{"a":"\\ud800"}', "[" * 100_000,
    ],
)  # fmt: skip
def test_a_saved_environment_not_written_by_run_is_refused(text: str) -> None:
    _assert_refused(lambda: saved_environment({ENV_SAVED_ENV: text}), ENV_SAVED_ENV)


def test_a_saved_environment_is_restored() -> None:
    saved = json.dumps({"A": "1", "B": "", "C": "\udcff"})
    assert saved_environment({"B": "2", "D": "4", ENV_SAVED_ENV: saved}) == {
        "A": "1",
        "C": "\udcff",
        "D": "4",
    }
    assert saved_environment({"A": "1", ENV_SAVED_ENV: ""}) == {"A": "1"}
