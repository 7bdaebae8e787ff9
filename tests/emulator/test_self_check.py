"""The self-check: a loaded model computes the same in given memory as in OpenVINO's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.driver import Context, Driver, GraphSource, ZeResult
from softnpu.emulator.interface.environment import ENV_SELF_CHECK
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.openvino import self_check
from softnpu.emulator.openvino.binding import Binding
from softnpu.emulator.openvino.image import LoadedImage
from softnpu.emulator.supervisor.settings import DaemonSettings
from tests.conftest import StartDaemon
from tests.support import loaded_images
from tests.support.daemon import Daemon
from tests.support.models import write_scale
from tests.support.shared_tensors import MODELS, direct, einsum
from tests.support.work import Loaded

Load = Callable[[ov.Model], LoadedImage]


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


@pytest.fixture
def load(context: Context, private_dir: Path) -> Load:
    """Load a model as an engine does, in the test's process."""

    def loaded(model: ov.Model) -> LoadedImage:
        path = private_dir / "model.xml"
        ov.serialize(model, path)
        with GraphSource.from_ir(path) as source, context.create_graph(source) as graph:
            blob = bytes(graph.get_native_binary())
        return loaded_images.load(blob)

    return loaded


_SHAPES: dict[str, list[int]] = {"static": [2, 3], "dynamic": [-1, 3], "empty": [0, 3], "scalar": []}
_RARE = ("empty", "scalar")


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        pytest.param(kind, shape, id=f"{name}-{kind}", marks=[pytest.mark.soak] * (name in _RARE))
        for name, shape in _SHAPES.items()
        for kind in MODELS
        if not (kind == "bystanders" and name in _RARE)  # TopK and Gather need a non-empty dimension
    ],
)
def test_an_image_that_is_bound_rightly_passes(load: Load, kind: str, shape: list[int]) -> None:
    self_check.check(load(MODELS[kind](shape)))


def test_an_output_that_is_bound_in_the_place_of_an_input_is_found(load: Load) -> None:
    image = load(einsum([2, 3]))
    image.origins = {}
    with pytest.raises(
        Refused, match=r"self-check of graph 'model', output '\w+': on bound memory"
    ) as caught:
        self_check.check(image)
    assert caught.value.info.result == ZeResult.ERROR_MODULE_BUILD_FAILURE


def test_an_output_that_nobody_writes_is_found(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    image = load(direct([2, 3]))
    monkeypatch.setattr(Binding, "_finish_copies", lambda _: None)
    with pytest.raises(Refused, match=r"output '\w+': on bound memory nothing was written"):
        self_check.check(image)


def test_a_model_of_random_numbers_cannot_be_compared(load: Load) -> None:
    x = ops.parameter([8], ov.Type.f32, name="x")
    low, high = ops.constant(np.float32(0)), ops.constant(np.float32(1))
    noise = ops.random_uniform(ops.constant([8]), low, high, "f32", 0, 0)
    self_check.check(load(ov.Model([ops.result(ops.add(x, noise))], [x], "noise")))


def test_a_check_that_fails_leaves_no_shape_behind(load: Load) -> None:
    """OpenVINO keeps sizes of a failed inference, and applies them to a later one."""
    table, data = ops.parameter([-1, -1], np.float32), ops.parameter([8, 5, -1], np.float32)
    rows, updates = ops.constant([[2], [0]]), ops.constant(np.ones((2, 2), np.float32))
    none = ops.constant([0, 0, 0])
    wider = ops.batch_to_space(data, ops.constant([1, 1, 2]), none, ops.constant([0, 0, 1]))
    image = load(
        ov.Model([ops.floor(wider), ops.scatter_nd_update(table, rows, updates)], [data, table], "model")
    )
    self_check.check(image)
    request = image.compiled.create_infer_request()
    request.infer([np.ones((8, 5, 2), np.float32), np.ones((3, 2), np.float32)])
    assert [tuple(tensor.shape) for tensor in request.output_tensors] == [(4, 5, 3), (3, 2)]


@pytest.mark.parametrize(("option", "variable"), [(True, ""), (False, "1"), (False, "0")])
def test_a_daemon_checks_what_it_loads_if_it_is_asked_to(
    start_daemon: StartDaemon,
    private_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: bool,
    variable: str,
) -> None:
    monkeypatch.setenv(ENV_SELF_CHECK, variable)
    daemon = start_daemon(self_check=option)
    with Driver.open(daemon.socket) as driver, driver.devices[0].create_context() as context:
        Loaded(context, write_scale(private_dir, 2.0))
    assert ("self-check of 'scale': equal" in daemon.log) is (option or variable == "1")


def test_the_variable_is_a_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_SELF_CHECK, "yes")
    with pytest.raises(Refused, match="SOFTNPU_SELF_CHECK: 'yes'; expected 0 or 1"):
        DaemonSettings(socket="/nowhere").check()
