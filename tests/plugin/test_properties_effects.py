"""The effect of each property that has one."""

from __future__ import annotations

import itertools
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.emulator.common.spin import TurboBudget
from softnpu.emulator.compiler.options import OPTIONS
from softnpu.plugin import CompiledModel, Core, InferRequest, PropertyError
from softnpu.plugin.properties import PROPERTIES, Use
from softnpu.plugin.requests.optimal_requests import COUNTS
from tests.conftest import StartDaemon
from tests.support.cases import case
from tests.support.daemon import Daemon

IMAGE = np.ones((1, 1, 8, 8), np.float32)

# The driver's compiler takes them from native programs. Here the plugin acts on them itself, or they belong
# to ways of passing a model that it does not use.
_NOT_HANDED_ON = {
    "CACHE_MODE", "DEVICE_ID", "ENABLE_WEIGHTLESS", "MODEL_PRIORITY", "NPU_BATCH_MODE",
    "NPU_MAX_TILES", "NPU_MODEL_SERIALIZER_VERSION", "NPU_SECURE_COMPILE",
    "NPU_SEPARATE_WEIGHTS_VERSION", "NPU_STATES_DYNAMIC", "NPU_STATES_INIT", "NPU_TURBO",
    "NPU_UNBOUNDED_BYTES", "NPU_WEIGHTS_EMBED_THRESHOLD",
    "PERFORMANCE_HINT_NUM_REQUESTS", "WS_COMPILE_CALL_NUMBER",
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("log_level_restored")


# ---------------------------------------------------------------- compiler


def test_the_compiler_knows_every_property_it_is_given() -> None:
    handed = {name for name, record in PROPERTIES.items() if record.use is Use.COMPILER}
    assert handed <= OPTIONS.keys()
    for name in handed:
        record = PROPERTIES[name]
        assert OPTIONS[name].default in ("", record.text(record.default)), name
    recorded = {name for name, record in PROPERTIES.items() if record.use is Use.RECORDED}
    assert OPTIONS.keys() - handed - recorded <= _NOT_HANDED_ON


def test_the_model_is_compiled_with_the_values(shared_core: Core, digits: Path) -> None:
    config = {
        "EXECUTION_MODE_HINT": "PERFORMANCE",
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_NUM_THREADS": "1",
        "NPU_PROFILING_CLOCK": "DEVICE",
        "PERF_COUNT": "YES",
    }
    default = shared_core.compile_model(digits).meta.config
    assert not config.items() & default.items()
    assert config.items() <= shared_core.compile_model(digits, "NPU", config).meta.config.items()


def test_inference_precision_is_the_precision_of_the_computation(
    shared_core: Core, digits: Path, reference: ov.Core
) -> None:
    host = shared_core.get_property("NPU", "OPTIMIZATION_CAPABILITIES")
    for kind, word in ((ov.Type.f32, "FP32"), (ov.Type.bf16, "BF16")):  # f16: tests/arithmetic
        if word not in host:
            continue
        config = {ov.properties.hint.inference_precision: kind}
        compiled = shared_core.compile_model(digits, "NPU", config)
        assert compiled.meta.precision == kind.to_string()
        assert compiled.get_property("INFERENCE_PRECISION_HINT") == kind
        expected = reference.compile_model(digits, "CPU", config)(IMAGE)[0]
        np.testing.assert_array_equal(compiled(IMAGE)[0], expected)


def test_f16_saturates_or_overflows_except_in_f32_layers(shared_core: Core) -> None:
    left = ops.parameter([4], np.float32, name="left")
    product = ops.multiply(left, ops.constant(np.float32(3)))
    model = ov.Model([ops.result(product)], [left], "product")
    given = np.array([1 / 3, -30000, 5e4, 2**-26], np.float32)
    third, tiny = 1.0, 0.0
    layers = {"NPU_COMPILATION_MODE_PARAMS": "compute-layers-with-higher-precision=Multiply"}
    cases: list[tuple[dict[str, str], list[float]]] = [
        ({}, [third, -65504, 65504, tiny]),
        ({"NPU_F16_OVERFLOW": "INFINITY"}, [third, -np.inf, np.inf, tiny]),
        (layers, (given * np.float32(3)).tolist()),
    ]
    for config, expected in cases:
        compiled = shared_core.compile_model(model, "NPU", {"INFERENCE_PRECISION_HINT": "f16", **config})
        assert compiled.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f16
        np.testing.assert_array_equal(compiled([given])[0], np.array(expected, np.float32))


def test_the_platform_is_accepted_by_all_its_names(shared_core: Core, digits: Path) -> None:
    for value in ["AUTO_DETECT", "4000", "NPU4000", "VPU4000"]:
        with case(value):
            compiled = shared_core.compile_model(digits, "NPU", {"NPU_PLATFORM": value})
            assert compiled.get_property("NPU_PLATFORM") == compiled.meta.platform == "4000"


def test_the_model_is_compiled_for_strides(shared_core: Core, digits: Path) -> None:
    compiled = shared_core.compile_model(digits, "NPU", {"NPU_ENABLE_STRIDES_FOR": "image"})
    assert [argument.strides for argument in compiled.meta.arguments] == [True, False]


def test_tiles_follow_the_hints_unless_given(shared_core: Core, digits: Path) -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 4),
        ({"PERFORMANCE_HINT": "THROUGHPUT"}, 2),
        ({"NPU_MAX_TILES": 3}, 3),
        ({"NPU_TILES": 1}, 1),
        ({"NPU_TILES": 0}, 4),
        ({"NPU_COMPILATION_MODE_PARAMS": "performance-hint-override=latency"}, 6),
        ({"NPU_COMPILATION_MODE_PARAMS": "performance-hint-override=efficiency"}, 4),
        (
            {
                "PERFORMANCE_HINT": "THROUGHPUT",
                "NPU_COMPILATION_MODE_PARAMS": "performance-hint-override=latency",
            },
            2,
        ),
    ]
    for config, tiles in cases:
        with case(config, tiles):
            compiled = shared_core.compile_model(digits, "NPU", config)
            assert compiled.get_property("NPU_TILES") == tiles
            assert compiled.get_property("NPU_DMA_ENGINES") == 2


def test_the_compiler_in_the_plugin_does_not_exist(shared_core: Core, digits: Path) -> None:
    assert shared_core.compile_model(digits, "NPU", {"NPU_COMPILER_TYPE": "PREFER_PLUGIN"}).meta.compiler
    with pytest.raises(PropertyError, match="NPU_COMPILER_TYPE"):
        shared_core.compile_model(digits, "NPU", {"NPU_COMPILER_TYPE": "PLUGIN"})


def test_the_drivers_cache_is_used_unless_it_is_bypassed(
    shared_core: Core, digits: Path, private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = private_dir / "cache"
    monkeypatch.setenv(ENV_CACHE_DIR, str(cache))

    def loaded(bypass: bool) -> Any:
        compiled = shared_core.compile_model(digits, "NPU", {"NPU_BYPASS_UMD_CACHING": bypass})
        return compiled.get_property("LOADED_FROM_CACHE")

    assert not loaded(bypass=True)
    assert not cache.exists()
    assert not loaded(bypass=False)
    assert loaded(bypass=False)
    assert not loaded(bypass=True)


# ---------------------------------------------------------------- queue


def test_the_more_urgent_model_runs_first(
    shared_daemon: Daemon, shared_core: Core, two_by_two: ov.Model
) -> None:
    cases: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"MODEL_PRIORITY": "LOW"}, {}),
        ({}, {"MODEL_PRIORITY": "HIGH"}),
        ({"MODEL_PRIORITY": "LOW"}, {"MODEL_PRIORITY": "HIGH"}),
        ({"WORKLOAD_TYPE": "EFFICIENT"}, {}),
        ({"WORKLOAD_TYPE": "EFFICIENT"}, {"MODEL_PRIORITY": "LOW"}),
    ]
    for patience, urgency in cases:
        with case(patience, urgency):
            patient = shared_core.compile_model(two_by_two, "NPU", patience)
            urgent = shared_core.compile_model(two_by_two, "NPU", urgency)
            assert _runs_before(shared_daemon, urgent, patient)


def test_workload_type_takes_effect_on_the_compiled_model(
    shared_daemon: Daemon, shared_core: Core, two_by_two: ov.Model
) -> None:
    one, other = (shared_core.compile_model(two_by_two, "NPU", {"MODEL_PRIORITY": "LOW"}) for _ in "12")
    for urgent, patient in ((one, other), (other, one)):
        patient.set_property({"WORKLOAD_TYPE": "EFFICIENT"})
        assert _runs_before(shared_daemon, urgent, patient)
        patient.set_property({"WORKLOAD_TYPE": "DEFAULT"})
        assert not _runs_before(shared_daemon, urgent, patient)


def _runs_before(daemon: Daemon, urgent: CompiledModel, patient: CompiledModel) -> bool:
    """Return whether `urgent` runs before `patient` when both wait for the device.

    `patient` starts first and has not run longer: among equals it would win. It reads what
    `urgent` writes, so that its result tells. The engine is stopped while both are started.
    """
    writer, reader = urgent.create_infer_request(), patient.create_infer_request()
    reader.set_tensor("left", writer.get_tensor("total"))
    reader.get_tensor("right").data[:] = 1
    for request in (reader, writer):
        request.infer()
    writer.get_tensor("left").data[:] = 10
    writer.get_tensor("total").data[:] = 0
    with daemon.stopped_engine():
        for request in (reader, writer):
            request.start_async()
    for request in (reader, writer):
        request.wait()
    return bool(reader.results["total"][0, 0] == 11)


def test_turbo_makes_a_busy_waiting_queue(shared_core: Core, digits: Path) -> None:
    for turbo in (False, True):
        compiled = shared_core.compile_model(digits, "NPU", {"NPU_TURBO": turbo})
        assert isinstance(compiled._executable.queue().spin, TurboBudget) == turbo


def test_a_background_queue_keeps_its_level_after_it_was_lost(
    start_daemon: StartDaemon, two_by_two: ov.Model
) -> None:
    daemon = start_daemon(tdr_ms=200)
    core = Core(daemon.socket)
    patient = core.compile_model(two_by_two, "NPU", {"WORKLOAD_TYPE": "EFFICIENT"})
    queue = patient._executable.queue()
    waits = patient.context.create_command_list()
    waits.append_wait_on_events([patient.context.create_event()])
    waits.close()
    queue.execute_command_lists([waits])
    with pytest.raises(Exception, match="DEVICE_LOST"):
        queue.synchronize(30_000_000_000)
    assert patient._executable.queue() is not queue
    assert _runs_before(daemon, core.compile_model(two_by_two, "NPU", {"MODEL_PRIORITY": "LOW"}), patient)
    core.unload_plugin()


# ---------------------------------------------------------------- requests


def test_inferences_run_in_the_order_of_their_start(shared_core: Core, two_by_two: ov.Model) -> None:
    for config in [{}, {"NPU_RUN_INFERENCES_SEQUENTIALLY": True}, {"EXCLUSIVE_ASYNC_REQUESTS": True}]:
        with case(config):
            compiled = shared_core.compile_model(two_by_two, "NPU", config)
            requests: list[InferRequest] = [compiled.create_infer_request() for _ in range(16)]
            for before, after in itertools.pairwise(requests):
                after.set_tensor("left", before.get_tensor("total"))
            for request in requests:
                request.get_tensor("right").data[:] = 1
            for start in range(5):
                requests[0].get_tensor("left").data[:] = start
                for request in requests:
                    request.start_async()
                for request in requests:
                    request.wait()
                assert requests[-1].results["total"][0, 0] == start + 16


def test_the_optimal_number_is_capped_by_the_applications_hint(shared_core: Core, digits: Path) -> None:
    cases: list[tuple[int, int]] = [(3, 3), (100, 8), (0, 8), (1, 1)]
    for asked, expected in cases:
        with case(asked, expected):
            config = {"PERFORMANCE_HINT": "THROUGHPUT", "PERFORMANCE_HINT_NUM_REQUESTS": asked}
            compiled = shared_core.compile_model(digits, "NPU", config)
            assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == expected


def test_the_optimal_number_is_measured_on_request(
    shared_core: Core, shared_daemon: Daemon, digits: Path
) -> None:
    compiled = shared_core.compile_model(digits, "NPU", {"NPU_MEASURE_OPTIMAL_REQUESTS": True})
    before = shared_daemon.engine().inferences
    optimal = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    ran = shared_daemon.engine().inferences - before
    throughput = compiled.get_property("NPU_MEASURED_THROUGHPUT")
    assert tuple(throughput) == COUNTS
    assert ran > sum(throughput.values()) / 10, "the numbers come from inferences"
    best = max(throughput.values())
    assert optimal == min(count for count, rate in throughput.items() if rate >= 0.95 * best)
    # a second query does not measure again
    assert shared_daemon.engine().inferences - before == ran
    assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == optimal


def test_measuring_a_slow_model_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from softnpu.plugin.requests import optimal_requests

    class Slow:
        """A request whose inference takes 0.9 s, on a clock that only it advances."""

        model_inputs = input_tensors = ()

        def infer(self) -> None:
            clock[0] += 0.9

        def start_async(self) -> None: ...

        def wait(self) -> None:
            clock[0] += 0.9

    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    throughput = optimal_requests.measure(Slow)  # type: ignore[arg-type]
    assert list(throughput) == [1]
    assert clock[0] <= 3


# ---------------------------------------------------------------- log


def test_the_log_level_of_a_model_shows_its_compilation(
    shared_core: Core, digits: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared_core.compile_model(digits, "NPU", {"LOG_LEVEL": "LOG_ERROR"})
    assert caplog.messages == []
    shared_core.compile_model(digits, "NPU", {"LOG_LEVEL": "LOG_INFO", "NPU_TURBO": True})
    assert any("compiled for NPU" in text for text in caplog.messages)
    assert any("compiler: check" in text for text in caplog.messages)
    assert not any("NPU_TURBO" in text for text in caplog.messages)
    shared_core.compile_model(digits, "NPU", {"LOG_LEVEL": "LOG_DEBUG", "NPU_TURBO": True})
    assert "model 'digits', property NPU_TURBO: YES" in caplog.messages
    assert {record.name for record in caplog.records} == {"softnpu.plugin.core"}


def test_the_log_level_of_the_core_sets_the_plugins_logger(
    shared_core: Core, digits: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("softnpu.plugin")
    shared_core.set_property("NPU", {"LOG_LEVEL": "LOG_INFO"})
    assert logger.level == logging.INFO
    shared_core.compile_model(digits)
    assert any("compiled for NPU" in text for text in caplog.messages)
    caplog.clear()
    shared_core.set_property("NPU", {"LOG_LEVEL": "LOG_NONE"})
    shared_core.compile_model(digits)
    logger.critical("nobody hears this")
    assert caplog.messages == []


def test_messages_go_to_stderr_if_the_application_handles_none(
    shared_core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("softnpu.plugin")
    monkeypatch.setattr(logger, "propagate", False)
    logger.handlers = []
    shared_core.set_property("NPU", {"LOG_LEVEL": "LOG_NONE"})
    assert logger.handlers == []
    shared_core.set_property("NPU", {"LOG_LEVEL": "LOG_WARNING"})
    shared_core.set_property("NPU", {"LOG_LEVEL": "LOG_INFO"})
    assert [type(handler) for handler in logger.handlers] == [logging.StreamHandler]
