"""The compiler worker: the properties of a compilation."""

from __future__ import annotations

import openvino as ov
import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.support.compiler import Files, Worker, result


def test_values_given_are_recorded(worker: Worker, static: Files) -> None:
    given = {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_NUM_THREADS": "002",
        "EXECUTION_MODE_HINT": "PERFORMANCE",
        "PERF_COUNT": "YES",
        "NPU_PLATFORM": "4000",
        "NPU_TILES": "2",
        "LOG_LEVEL": "LOG_WARNING",
    }
    made = worker.blob(static.job(config=given), static.fds)
    assert made.meta.config == {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_NUM_THREADS": "2",
        "EXECUTION_MODE_HINT": "PERFORMANCE",
        "PERF_COUNT": "YES",
        "NPU_TILES": "2",
    }


def test_the_hint_for_several_devices_is_throughput_for_one(worker: Worker, static: Files) -> None:
    given = {"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"}
    assert worker.blob(static.job(config=given), static.fds).meta.config["PERFORMANCE_HINT"] == "THROUGHPUT"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("INFERENCE_PRECISION_HINT", "i8"),
        ("PERFORMANCE_HINT", "latency"),
        ("INFERENCE_NUM_THREADS", "-1"),
        ("INFERENCE_NUM_THREADS", "99999999999"),
        ("INFERENCE_NUM_THREADS", "٣"),
        ("EXECUTION_MODE_HINT", ""),
        ("NPU_PLATFORM", "NPU3721"),
        ("LOG_LEVEL", "VERBOSE"),
        ("PERF_COUNT", "MAYBE"),
        ("NPU_TILES", "0"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(
    worker: Worker, static: Files, name: str, value: str
) -> None:
    info = worker.info(static.job(config={name: value}), static.fds)
    assert result(info) == ZeResult.ERROR_INVALID_ARGUMENT
    assert name in info.object
    assert f"'{value}'" in info.found
    assert info.expected


def test_an_unknown_property_is_refused_with_near_names(worker: Worker, static: Files) -> None:
    info = worker.info(static.job(config={"PERFORMANCE_HINTS": "LATENCY"}), static.fds)
    assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert "PERFORMANCE_HINTS" in info.object
    assert "PERFORMANCE_HINT" in info.hint


@pytest.mark.parametrize(("precision", "capability"), [("bf16", "BF16"), ("f16", "FP16")])
def test_a_precision_is_honoured_or_refused(
    worker: Worker, static: Files, precision: str, capability: str
) -> None:
    job = static.job(config={"INFERENCE_PRECISION_HINT": precision})
    if capability in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        assert worker.blob(job, static.fds).meta.precision == precision
    else:
        info = worker.info(job, static.fds)
        assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
        assert precision in info.found
        assert "f32" in info.expected
