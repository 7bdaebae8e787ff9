"""Recommended changes: the largest wins according to the device model."""

from __future__ import annotations

import pytest

from softnpu.emulator.prediction.quantisation import quantised
from softnpu.emulator.prediction.timing import predict
from softnpu.emulator.prediction.timing.wins import Win, wins
from tests.prediction.calibration.architectures import ARCHITECTURES, architecture

pytestmark = pytest.mark.quick


def _wins(name: str, platform: str, *, int8: bool = False) -> tuple[Win, ...]:
    graph = quantised(architecture(name)) if int8 else architecture(name)
    return wins(graph, predict(graph, platform))


@pytest.mark.parametrize(
    ("name", "platform", "first"),
    [
        ("resnet-50", "3720", "quantise it to int8"),
        ("yolov8n", "3720", "use Relu, or another activation of the DPU, for Swish"),
        ("ssd-mobilenet-v1", "4000", "compute DetectionOutput on the host"),
        ("llama-2-7b", "4000", "compute batches, of 8 say"),
        ("bert-base", "3720", "use Relu, or another activation of the DPU, for Gelu"),
        ("shufflenet-v2", "3720", "avoid transpositions"),
    ],
)
def test_the_largest_win_is_reported_first(name: str, platform: str, first: str) -> None:
    found = _wins(name, platform)
    assert found[0].text == first
    assert [win.saved for win in found] == sorted((win.saved for win in found), reverse=True)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_win_saves_a_part_of_the_time(name: str) -> None:
    for win in _wins(name, "5010"):
        assert 0.05 <= win.saved < 1
        assert win.reason


def test_a_quantised_model_need_not_be_quantised() -> None:
    assert all("int8" not in win.text for win in _wins("resnet-50", "3720", int8=True))


def test_a_model_that_waits_for_the_host_needs_more_requests() -> None:
    assert _wins("mobilenetv2-050", "4000")[0].text == "keep several requests in flight"
    assert all("in flight" not in win.text for win in _wins("vgg13", "4000"))
