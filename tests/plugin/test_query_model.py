"""`Core.query_model`: which operations the device can run, by friendly name."""

from __future__ import annotations

from pathlib import Path

import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.plugin import Core, NpuError, PropertyError
from tests.support.kernels import added, elementwise, forgotten


def test_all_operations_of_a_model_that_runs_are_listed(
    shared_core: Core, reference: ov.Core, digits: Path
) -> None:
    model = shared_core.read_model(digits)
    found = shared_core.query_model(model, "NPU")
    assert set(found.values()) == {"NPU"}
    assert found.keys() == reference.query_model(model, "CPU").keys()
    assert found.keys() == {operation.get_friendly_name() for operation in model.get_ops()}


def test_a_name_with_brackets_is_found(shared_core: Core) -> None:
    left = ops.parameter([2], ov.Type.f32, name="<left>")
    total = ops.add(left, left)
    total.set_friendly_name("a><b")
    found = shared_core.query_model(ov.Model([ops.result(total)], [left], "brackets"), "NPU.0")
    assert {"<left>": "NPU.0", "a><b": "NPU.0"}.items() <= found.items()


def test_properties_are_checked(shared_core: Core, two_by_two: ov.Model) -> None:
    precision = {"INFERENCE_PRECISION_HINT": "f32"}
    assert shared_core.query_model(two_by_two, "NPU", precision)
    with pytest.raises(PropertyError, match="NPU_TORBO"):
        shared_core.query_model(two_by_two, "NPU", {"NPU_TORBO": True})
    with pytest.raises(PropertyError, match="NPU_PLATFORM"):
        shared_core.query_model(two_by_two, "NPU", {"NPU_PLATFORM": "3721"})
    with pytest.raises(PropertyError, match="'GPU'"):
        shared_core.query_model(two_by_two, "GPU")


def test_own_kernels_are_known(shared_core: Core, tmp_path: Path) -> None:
    x = ops.parameter([1, 8], ov.Type.f32, name="x")
    with forgotten():
        twice = added(shared_core, tmp_path, elementwise("Twice"))
        model = ov.Model([ops.result(ops.relu(twice([x.output(0)])))], [x], "kernel")
        every = {operation.get_friendly_name() for operation in model.get_ops()}
        assert shared_core.query_model(model).keys() == every
        config = {"NPU_KERNELS_FOR": "Relu=tests.Twice"}
        assert shared_core.query_model(model, "NPU", config).keys() == every
        config = {"NPU_KERNELS_FOR": "Softmax=tests.Twice"}
        with pytest.raises(NpuError, match="Softmax, of which the model has none"):
            shared_core.query_model(model, "NPU", config)
    with pytest.raises(NpuError, match="Twice"):
        shared_core.query_model(model)
