"""Changes that would make a model faster, by the device model, each with its saving."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from softnpu.emulator.prediction.graph import Graph
from softnpu.emulator.prediction.quantisation import quantised
from softnpu.emulator.prediction.timing.features import SELECTIONS
from softnpu.emulator.prediction.timing.host import Host
from softnpu.emulator.prediction.timing.predict import predict
from softnpu.emulator.prediction.timing.result import Bound, LayerTime, Prediction

_GENERAL: Final = "use less of"
_WORTH: Final = 0.05
"""Changes that save a smaller share of the time are not reported."""
_BATCH: Final = 8
"""Samples of the proposed batch."""
_ACTIVATIONS: Final = frozenset(
    (
        "Swish",
        "HSwish",
        "Gelu",
        "Sigmoid",
        "Tanh",
        "Mish",
        "Elu",
        "Selu",
        "SoftPlus",
        "HardSigmoid",
        "HSigmoid",
    )
)
_BY_HOST: Final = 0.3
"""A smaller share on the host is not worth a program of several requests."""
_USEFUL: Final = 0.6
"""A layer that uses a smaller share of the MACs wastes them."""


class Win(msgspec.Struct, frozen=True, kw_only=True):
    """One change. `saved` is the saved share of the device's time; for a batch, of a sample's; for what
    is on the host, of a lone inference. `general`: what costs most, with no change that is known to help."""

    text: str
    reason: str
    saved: float
    general: bool = False


def wins(graph: Graph, prediction: Prediction, host: Host | None = None) -> tuple[Win, ...]:
    """Return the worthwhile changes, largest first; general ones only without others. They do not add up."""
    total = prediction.device_us.value
    if not total:
        return ()
    candidates = [
        *_quantise(graph, prediction, host),
        *_of_layers(prediction.layers, total),
        *_of_the_host(prediction),
    ]
    worth = sorted((win for win in candidates if win.saved >= _WORTH), key=lambda win: -win.saved)
    return tuple(win for win in worth if not win.general) or tuple(worth)


def _quantise(graph: Graph, prediction: Prediction, host: Host | None) -> Iterator[Win]:
    if prediction.precision == "int8":
        return
    other = predict(quantised(graph), prediction.platform, tiles=prediction.tiles, host=host)
    yield Win(
        text="quantise it to int8",
        reason="int8 has twice the MACs of f16 and half the bytes",
        saved=1 - other.device_us.value / prediction.device_us.value,
    )


def _of_the_host(prediction: Prediction) -> Iterator[Win]:
    saved = prediction.host_us / prediction.latency_us.value
    yield Win(
        text="keep several requests in flight",
        reason="program, driver and copies, for which a lone one waits, overlap: more a second, none sooner",
        saved=saved if saved >= _BY_HOST else 0.0,
    )


def _of_layers(layers: Iterable[LayerTime], total: float) -> Iterator[Win]:
    layers = tuple(layers)
    weights_us = sum(_weights_us(each) for each in layers if each.bound is Bound.MEMORY)
    yield Win(
        text=f"compute batches, of {_BATCH} say",
        reason="constants are fetched once for all of a batch",
        saved=weights_us * (1 - 1 / _BATCH) / total,
    )
    yield from _of_kernels(layers, total)
    wasted = [
        each
        for each in layers
        if each.kernel in ("Convolution", "MatMul")
        and (each.utilization or 1) < _USEFUL
        and each.bound is Bound.COMPUTE
    ]
    if wasted:
        slowest = max(wasted, key=lambda each: each.time_us.value)
        yield Win(
            text="use channels in multiples of 16",
            reason=f"padding wastes MACs in {_count(wasted, 'layer')}, most in {slowest.name}",
            saved=sum(each.time_us.value * (1 - (each.utilization or 0)) for each in wasted) / total,
        )


def _count(layers: list[LayerTime], noun: str) -> str:
    return f"{len(layers)} {noun}{'' if len(layers) == 1 else 's'}"


def _weights_us(layer: LayerTime) -> float:
    if not layer.ddr_bytes:
        return 0.0
    fetched = layer.memory_us * layer.weights_bytes / layer.ddr_bytes
    return max(min(fetched, layer.time_us.value - layer.compute_us), 0.0)


def _of_kernels(layers: Iterable[LayerTime], total: float) -> Iterator[Win]:
    by_kernel: dict[str, list[LayerTime]] = {}
    for each in layers:
        if each.unit == "SHAVE":
            by_kernel.setdefault(each.kernel, []).append(each)
    for kernel, members in by_kernel.items():
        saved = sum(each.time_us.value for each in members) / total
        if kernel in _ACTIVATIONS:
            text = f"use Relu, or another activation of the DPU, for {kernel}"
            kernels = _count(members, "software kernel")
            reason = f"{kernels}; the DPU computes Relu on its way out; the model has to be trained again"
        elif kernel == "MemPermute":
            text = "avoid transpositions"
            reason = f"{_count(members, 'software kernel')}; images are stored with channels last"
        elif kernel in SELECTIONS:
            text = f"compute {kernel} on the host"
            reason = "selecting boxes is a software kernel, and slow"
        else:
            text = f"{_GENERAL} {kernel}"
            reason = f"{_count(members, 'software kernel')} on the SHAVEs, not on the DPU"
        yield Win(text=text, reason=reason, saved=saved, general=text.startswith(_GENERAL))
