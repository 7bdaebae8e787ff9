"""A batch in several tensors: where they are used in place, and what is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest

from softnpu.plugin import CompiledModel, Core, InputError
from tests.plugin.api.table import batched

SAMPLES = [np.full((1, 3), number, np.float32) for number in range(4)]
EXPECTED = np.concatenate(SAMPLES)


def tensors() -> list[ov.Tensor]:
    return [ov.Tensor(sample.copy()) for sample in SAMPLES]


@pytest.mark.parametrize("mode", ["COMPILER", "PLUGIN"])
@pytest.mark.parametrize("batch", [4, -1])
def test_samples_in_a_row_on_the_device_are_used_in_place(shared_core: Core, mode: str, batch: int) -> None:
    compiled = shared_core.compile_model(batched(ov.Type.f32, batch), "NPU", {"NPU_BATCH_MODE": mode})
    request = compiled.create_infer_request()
    memory = compiled.get_context().create_tensor(ov.Type.f32, [4, 3])
    rows = [ov.Tensor(memory, ov.Coordinate([at, 0]), ov.Coordinate([at + 1, 3])) for at in range(4)]
    for given, staged in ((rows, 0), (tensors(), 48), (rows[::-1], 48)):
        before = compiled.staged_bytes
        memory.data[:] = EXPECTED
        request.set_tensors("data", given)
        expected = EXPECTED[::-1] if given == rows[::-1] else EXPECTED
        np.testing.assert_array_equal(request.infer()[0], expected)
        assert compiled.staged_bytes - before == staged


@pytest.fixture
def compiled(shared_core: Core) -> CompiledModel:
    return shared_core.compile_model(batched(ov.Type.f32, -1), "NPU", {"NPU_BATCH_MODE": "COMPILER"})


def test_what_is_set_afterwards_replaces_all_samples(compiled: CompiledModel) -> None:
    request = compiled.create_infer_request()
    own = request.get_tensor("data")
    own.shape = [2, 3]
    given = tensors()
    ones = np.ones((2, 3), np.float32)

    def set_own() -> None:
        own.shape = [2, 3]
        own.data[:] = 1
        request.set_tensor("data", own)

    def share() -> None:
        request.infer([ones], share_inputs=True)

    for replace in (set_own, share, lambda: request.infer([ones])):
        request.set_input_tensors(given)
        np.testing.assert_array_equal(request.infer()[0], EXPECTED)
        replace()
        np.testing.assert_array_equal(request.infer()[0], ones)
        assert request.get_tensor("data").shape == ov.Shape([2, 3])
    np.testing.assert_array_equal(np.concatenate([each.data for each in given]), EXPECTED)


def test_samples_of_another_port_are_refused_and_change_nothing(compiled: CompiledModel) -> None:
    request = compiled.create_infer_request()
    request.set_input_tensors(tensors())
    halves: Any = [ov.Tensor(sample.astype(np.float16)) for sample in SAMPLES]
    wide: Any = [ov.Tensor(np.zeros((1, 4), np.float32)) for _ in SAMPLES]
    for given, message in ((halves, r"f16\[4, 3\] given; expected f32"), (wide, r"f32\[4, 4\] given")):
        with pytest.raises(InputError, match=message):
            request.set_input_tensors(given)
        np.testing.assert_array_equal(request.infer()[0], EXPECTED)
