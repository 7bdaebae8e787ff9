"""The device model: invariants for any model, and the published granularity."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from softnpu.emulator.interface.result import Refused
from softnpu.emulator.prediction.graph import DYNAMIC, Graph, Operation, Tensor
from softnpu.emulator.prediction.quantisation import quantised
from softnpu.emulator.prediction.timing import Bound, calibration, predict
from softnpu.emulator.prediction.timing.devices import DEVICES, find_device
from softnpu.emulator.prediction.timing.features import work_of
from softnpu.emulator.prediction.timing.host import parse_host
from softnpu.emulator.prediction.timing.providers import (
    DEFAULT_PROVIDERS,
    MeasuredProvider,
    MeasuredTime,
    Provider,
    UnitTime,
)
from softnpu.emulator.prediction.timing.work import Work
from tests.prediction.calibration.architectures import ARCHITECTURES, architecture
from tests.prediction.graph_builder import GraphBuilder


def _as_is(graph: Graph) -> Graph:
    return graph


_PRECISIONS = (_as_is, quantised)


def _convolution(
    channels: int = 64, size: int = 28, outputs: int = 64, kernel: int = 3, batch: int = 1
) -> Graph:
    build = GraphBuilder("convolution")
    return build.build(build.convolution(build.parameter(batch, channels, size, size), outputs, kernel))


def _depthwise(channels: int) -> Graph:
    build = GraphBuilder("depthwise")
    return build.build(build.depthwise(build.parameter(1, channels, 56, 56)))


def _product(rows: int) -> Graph:
    build = GraphBuilder("product")
    return build.build(build.linear(build.parameter(1, rows, 512), 512))


def _activation(type: str, elements: int) -> Graph:
    build = GraphBuilder("activation")
    return build.build(build.activation(build.parameter(1, 64, elements // 64), type))


def _swish(elements: int) -> Graph:
    return _activation("Swish", elements)


def _cycles(graph: Graph, platform: str = "4000", tiles: int = 1) -> float:
    works = work_of(quantised(graph), find_device(platform), tiles)
    return sum(work.dpu_cycles for work in works)


@pytest.mark.parametrize("platform", DEVICES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_totals_are_the_sum_of_layers_and_bands_hold_their_values(name: str, platform: str) -> None:
    for precision in _PRECISIONS:
        found = predict(precision(architecture(name)), platform)
        assert found.device_us.value == pytest.approx(sum(each.time_us.value for each in found.layers))
        assert found.latency_us.value >= found.device_us.value
        assert found.throughput.value == pytest.approx(1e6 / found.device_us.value)
        assert found.throughput.high == pytest.approx(1e6 / found.device_us.low)
        assert found.macs == sum(each.macs for each in found.layers)
        assert found.memory.ddr_traffic == sum(each.ddr_bytes for each in found.layers)
        assert sum(found.shares.values()) == pytest.approx(1, abs=1e-3)
        for band in (found.device_us, found.latency_us, found.throughput):
            assert 0 < band.low <= band.value <= band.high
        for each in found.layers:
            assert 0 <= each.time_us.low <= each.time_us.value <= each.time_us.high
            assert each.utilization is None or 0 < each.utilization <= 1
            assert each.source
        assert found.energy_joules is None


@pytest.mark.parametrize("platform", DEVICES)
@pytest.mark.parametrize("name", ["resnet-50", "mobilenet-v2", "yolov8n", "bert-base"])
def test_more_tiles_are_never_slower(name: str, platform: str) -> None:
    for precision in _PRECISIONS:
        times = [
            predict(precision(architecture(name)), platform, tiles=tiles).device_us.value
            for tiles in range(1, DEVICES[platform].tiles + 1)
        ]
        assert all(more <= fewer * (1 + 1e-9) for fewer, more in pairwise(times))


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (lambda size: _convolution(channels=size), (3, 4, 5, 16, 17, 64, 512)),
        (lambda size: _convolution(outputs=size), (1, 16, 17, 33, 256, 2048)),
        (lambda size: _convolution(size=size), (1, 2, 7, 13, 14, 57, 224, 640)),
        (lambda size: _convolution(kernel=size), (1, 3, 5, 7)),
        (lambda size: _convolution(batch=size), (1, 2, 8)),
        (_depthwise, (8, 16, 40, 64, 960)),
        (_product, (1, 16, 100, 4096)),
        (_swish, (64, 6400, 640000)),
    ],
)
@pytest.mark.parametrize("platform", DEVICES)
def test_more_work_is_never_faster(
    make: Callable[[int], Graph], sizes: tuple[int, ...], platform: str
) -> None:
    for precision in _PRECISIONS:
        found = [predict(precision(make(size)), platform) for size in sizes]
        times = [each.device_us.value for each in found]
        assert all(less <= more * (1 + 1e-9) for less, more in pairwise(times)), times
        assert times[0] < times[-1]
        bytes_needed = [each.memory.ddr_traffic for each in found]
        assert bytes_needed == sorted(bytes_needed)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_convolution(outputs=17), _convolution(outputs=32)),
        (_convolution(channels=33), _convolution(channels=48)),
        (_convolution(size=13), _convolution(size=16)),
        (_depthwise(16), _depthwise(32)),
        (_product(1), _product(16)),
    ],
)
def test_padding_costs_as_much_as_work(one: Graph, other: Graph) -> None:
    assert _cycles(one) == _cycles(other)


def test_a_layer_that_does_not_fit_into_cmx_is_spilled() -> None:
    small, large = (predict(_convolution(size=size, kernel=1), "3720") for size in (28, 640))
    assert small.memory.spilled == 0
    build = GraphBuilder("deep")
    value = build.convolution(build.parameter(1, 16, 640, 640), 64)
    deep = predict(build.build(build.convolution(value, 64)), "3720")
    assert deep.memory.spilled > 64 * 640 * 640 * 2
    assert deep.layers[-1].bound is Bound.MEMORY
    assert large.memory.cmx == small.memory.cmx == 2 * 1936 * 1024


@pytest.mark.parametrize(
    ("graph", "platform", "bound"),
    [
        (_convolution(channels=256, outputs=256, size=64), "4000", Bound.COMPUTE),
        (_product(1), "3720", Bound.MEMORY),
        (_activation("Gelu", 6400000), "3720", Bound.SHAVE),
        (_convolution(size=4), "4000", Bound.OVERHEAD),
    ],
)
def test_a_layer_reports_its_bound(graph: Graph, platform: str, bound: Bound) -> None:
    (layer,) = predict(graph, platform).layers
    assert layer.bound is bound


def test_quantised_operations_and_compressed_weights_are_recognised() -> None:
    build = GraphBuilder("quantised")
    limit = build.constant(1)
    image = build.add(
        "FakeQuantize", [build.parameter(1, 64, 28, 28), *[limit] * 4], (1, 64, 28, 28), levels=256
    )
    stored = build.constant(64, 64, 3, 3, element_type="i8")
    weights = build.add("Convert", [stored], (64, 64, 3, 3))
    quantised = build.build(build.add("Convolution", [image, weights], (1, 64, 28, 28), strides=(1, 1)))
    (layer,) = predict(quantised, "4000").layers
    assert layer.precision == "int8"
    assert layer.weights_bytes == 64 * 64 * 9
    build = GraphBuilder("compressed")
    weights = build.add("Convert", [build.constant(512, 512, element_type="u4")], (512, 512))
    (layer,) = predict(build.build(build.matmul(build.parameter(1, 16, 512), weights)), "4000").layers
    assert layer.precision == "f16"
    assert layer.weights_bytes == 512 * 512 // 2


def test_a_quantised_graph_multiplies_integers_and_stores_them() -> None:
    for name in ("yolov8n", "resnet-50", "bert-base"):
        works = work_of(quantised(architecture(name)), find_device("3720"), 2)
        products = [work for work in works if work.group.kernel in ("Convolution", "MatMul")]
        assert sum(work.int8 for work in products) >= len(products) - 1, name  # the softmax of boxes is f16
        before = work_of(architecture(name), find_device("3720"), 2)
        assert sum(work.weights_bytes for work in works) < 0.6 * sum(work.weights_bytes for work in before)


def test_the_host_counts_for_a_lone_inference() -> None:
    graph = _convolution(size=224)
    usual, slow = predict(graph, "3720"), predict(graph, "3720", host=parse_host("155H,copy=1"))
    assert (usual.host, slow.host) == ("155H", "155H,copy=1")
    assert slow.device_us == usual.device_us
    copied = (64 + 64) * 224 * 224 * 4
    assert slow.host_us - usual.host_us == pytest.approx(
        copied / 1000 * (1 - 1 / calibration.load().calibration.copy_gbs), rel=1e-3
    )
    assert predict(graph, "3720", host=parse_host("ddr=5")).device_us.value > usual.device_us.value
    assert predict(graph, "3720", host=parse_host("265kf")).device_us.value < usual.device_us.value


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("265FK", ("host", "265FK", "one of 155H", "did you mean 265KF?")),
        ("dd=40", ("host", "dd=40", "clock, ddr, copy, call", "did you mean ddr?")),
        ("ddr=fast", ("host", "ddr=fast", "a positive number")),
        ("ddr=0", ("host", "ddr=0", "a positive number")),
    ],
)
def test_an_unknown_host_is_refused(text: str, told: tuple[str, ...]) -> None:
    with pytest.raises(Refused) as caught:
        parse_host(text)
    assert all(each in f"{caught.value} {caught.value.info.hint}" for each in told)


def test_the_first_provider_that_knows_a_group_decides() -> None:
    graph = _convolution(outputs=64, size=16)
    graph = quantised(graph)
    (work,) = work_of(graph, find_device("4000"), 1)
    taken = MeasuredTime(
        "4000", "Convolution", True, 1, elements=work.elements, macs=work.macs, us=123.0, source="a bench"
    )
    providers: tuple[Provider, ...] = (MeasuredProvider([taken]), *DEFAULT_PROVIDERS)
    (layer,) = predict(graph, "4000", tiles=1, providers=providers).layers
    assert (layer.provider, layer.source, layer.compute_us) == ("measured", "a bench", 123.0)
    (other,) = predict(graph, "4000", tiles=2, providers=providers).layers
    assert other.provider == "roofline"
    assert predict(_swish(6400), "3720").layers[0].provider == "table"


class _Slow:
    def time(self, work: Work, device: object, tiles: int) -> UnitTime:
        del work, device
        return UnitTime(1e6 / tiles, "mine", "a test")


def test_anybody_can_be_a_provider() -> None:
    (layer,) = predict(_convolution(), "4000", tiles=4, providers=[_Slow()]).layers
    assert layer.provider == "mine"
    assert layer.compute_us == pytest.approx(250_000, rel=0.2)


def test_an_unmeasured_platform_has_wider_bands_and_says_so() -> None:
    known, unknown = (predict(_convolution(), platform) for platform in ("4000", "5010"))
    assert unknown.device_us.high / unknown.device_us.value > known.device_us.high / known.device_us.value
    assert any("nobody has published" in note for note in unknown.notes)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: predict(_convolution(), "4711"), ("platform to predict", "4711", "3720 or 4000 or 5010")),
        (
            lambda: predict(_convolution(), "5020"),
            ("platform to predict", "5020 (Wildcat Lake)", "no public source"),
        ),
        (lambda: predict(_convolution(), "3720", tiles=3), ("tiles of platform 3720", "3", "1 to 2")),
        (lambda: predict(_convolution(), "3720", tiles=0), ("tiles of platform 3720", "0", "1 to 2")),
        (
            lambda: predict(_convolution(), "4000", host=parse_host("265KF")),
            ("host 265KF", "4000 (Lunar Lake)", "3720 (Meteor Lake)"),
        ),
        (lambda: predict(_open(), "3720"), ("input 'image' of 'open'", "[1, ?]", "static shapes")),
    ],
)
def test_unpredictable_models_are_refused(call: Callable[[], object], told: tuple[str, ...]) -> None:
    with pytest.raises(Refused) as caught:
        call()
    for each in told:
        assert each in str(caught.value)


def _open() -> Graph:
    tensor = Tensor("f32", (1, DYNAMIC), (1, DYNAMIC))
    return Graph("open", (Operation(0, "image", "Parameter", (), (tensor,)),))


def test_every_figure_of_a_device_lies_in_its_band_and_has_a_source() -> None:
    for device in DEVICES.values():
        for name, figure in device.figures().items():
            assert 0 < figure.low <= figure.value <= figure.high, f"{device.platform} {name}"
            assert figure.source
            assert figure.unit
