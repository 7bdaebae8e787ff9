"""Strict mode refuses what silicon is known to refuse, citing the source of the rule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.emulator.interface.environment import ENV_STRICT
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.prediction.support.rules import IMPORTER, RULES
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.plugin import CompileError, Core
from tests.conftest import StartDaemon
from tests.prediction import models

_LIST = "compute-layers-with-higher-precision"
PLAIN = models.unary(ops.relu, 1, 8)
BOUNDED = models.unary(ops.relu, 4, ov.Dimension(1, 8))


@pytest.fixture
def strict(start_daemon: StartDaemon) -> Iterator[Core]:
    """A core on a strict daemon."""
    core = Core(start_daemon(strict=True).socket)
    yield core
    core.unload_plugin()


def refusal(core: Core, model: ov.Model, config: dict[str, str] | None = None) -> str:
    """The rule that refuses a compilation; empty if none does."""
    try:
        core.compile_model(model, "NPU", config or {})
    except CompileError as error:
        (rule,) = [rule for rule in RULES if f"by rule {rule} (" in str(error)]
        return rule
    return ""


def test_a_strict_daemon_refuses_exactly_what_the_rules_refuse(strict: Core) -> None:
    found = {
        "plain": refusal(strict, PLAIN),
        "unknown": refusal(strict, BOUNDED),
        "operation": refusal(strict, models.with_unsupported()),
        "body": refusal(strict, models.branch()),
        "open": refusal(strict, models.unary(ops.relu, -1, -1)),
        "rank": refusal(strict, models.unary(ops.relu, 1, 1, 1, 1, 2, 4)),
        "state": refusal(strict, models.state(ov.Dimension(-1))),
        # the compiler then sees a static bound
        "static": refusal(strict, BOUNDED, {"NPU_DYNAMIC_SHAPE_TO_STATIC": "YES"}),
        "words of OpenVINO": refusal(strict, PLAIN, {"NPU_COMPILATION_MODE_PARAMS": f"{_LIST}=Relu"}),
        "words of the compiler": refusal(strict, PLAIN, {"NPU_COMPILATION_MODE_PARAMS": f"{_LIST}=ReLU"}),
        "not turned off": refusal(strict, models.with_unsupported(), {"NPU_STRICT": "NO"}),
    }
    assert found == {
        "plain": "",
        "unknown": "",
        "operation": "operation.unsupported",
        "body": "operation.unsupported",
        "open": "shape.unbounded",
        "rank": "rank.argument",
        "state": "state.unbounded",
        "static": "",
        "words of OpenVINO": refusal(strict, PLAIN, {"NPU_COMPILATION_MODE_PARAMS": f"{_LIST}=Relu"}),
        "words of the compiler": refusal(strict, PLAIN, {"NPU_COMPILATION_MODE_PARAMS": f"{_LIST}=ReLU"}),
        "not turned off": "operation.unsupported",
    }


def test_a_refusal_names_its_source_and_query_and_log_have_the_rest(strict: Core) -> None:
    with pytest.raises(CompileError) as failure:
        strict.compile_model(models.with_unsupported(), "NPU")
    for word in ("SearchSorted", "(in 'check')", "operation.unsupported", str(IMPORTER), "HETERO:NPU,CPU"):
        assert word in str(failure.value), word
    for model, missing in (
        (PLAIN, set()),
        (models.with_unsupported(), {"check"}),
        (models.branch(), {"choice"}),
    ):
        names = {operation.get_friendly_name() for operation in model.get_ops()}
        assert names - strict.query_model(model, "NPU").keys() == missing
    compiled = strict.compile_model(BOUNDED, "NPU", {"LOG_LEVEL": "LOG_INFO"})
    assert "strict: unknown whether silicon takes bounded dimensions of input 'x'" in compiled.build_log


def test_the_property_makes_one_compilation_strict(shared_core: Core) -> None:
    assert refusal(shared_core, models.with_unsupported()) == ""
    assert refusal(shared_core, models.with_unsupported(), {"NPU_STRICT": "YES"}) == "operation.unsupported"
    model = models.with_unsupported()
    assert "check" in shared_core.query_model(model, "NPU")
    assert "check" not in shared_core.query_model(model, "NPU", {"NPU_STRICT": "YES"})


def test_variable_and_option_turn_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for variable in ("", "0", "1"):
        monkeypatch.setenv(ENV_STRICT, variable)
        for option in (False, True):
            found[variable, option] = DaemonSettings(socket="/nowhere", strict=option).is_strict
    assert found == {(variable, option): option or variable == "1" for variable, option in found}


def test_an_invalid_value_of_the_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_STRICT, "yes")
    with pytest.raises(Refused, match="SOFTNPU_STRICT: 'yes'; expected 0 or 1"):
        DaemonSettings(socket="/nowhere").check()


def test_caches_and_blobs_of_a_lenient_daemon_do_not_bypass_strict_mode(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ENV_CACHE_DIR, str(tmp_path / "driver"))
    model, cached = models.with_unsupported(), {"CACHE_DIR": str(tmp_path / "plugin")}
    loose = Core(start_daemon(socket=str(tmp_path / "loose.sock")).socket)
    loose.compile_model(model, "NPU")
    loose.compile_model(model, "NPU", cached)
    loose.compile_model(model, "NPU").export_model(tmp_path / "loose.blob")
    monkeypatch.setenv(ENV_STRICT, "1")
    strict = Core(start_daemon().socket)
    assert refusal(strict, model) == refusal(strict, model, cached) == "operation.unsupported"
    with pytest.raises(Exception, match="compiled without NPU_STRICT"):
        strict.import_model(tmp_path / "loose.blob", "NPU")
    # whatever a strict compiler has accepted is accepted everywhere
    strict.compile_model(PLAIN, "NPU").export_model(tmp_path / "strict.blob")
    for core in (strict, loose):
        assert core.import_model(tmp_path / "strict.blob", "NPU").meta.config["NPU_STRICT"] == "YES"
        core.unload_plugin()
