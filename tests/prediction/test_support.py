"""The rules of silicon's support: each on the smallest model that it concerns, and on real ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import openvino as ov
import pytest
from openvino import opset9, opset10
from openvino import opset15 as ops

from softnpu.emulator.arithmetic.settings import HIGHER_PRECISION
from softnpu.emulator.platforms import PLATFORMS
from softnpu.emulator.prediction.bodies import read_bodies
from softnpu.emulator.prediction.reader import read_graph
from softnpu.emulator.prediction.support import conditions, element_types, operations, rules
from softnpu.emulator.prediction.support.check import check
from softnpu.emulator.prediction.support.findings import Support, Verdict
from softnpu.emulator.prediction.support.operation_table import operation_table
from softnpu.tools.generators.importer import Versions
from softnpu.tools.models.catalogue import CATALOGUE
from softnpu.tools.models.fetch import get
from tests.prediction import models

OPEN = ov.Dimension(-1)
UP_TO_8 = ov.Dimension(1, 8)


def support_of(model: ov.Model, platform: str = "4000", config: Mapping[str, str] | None = None) -> Support:
    return check(read_graph(model), platform, read_bodies(model), config)


Case = tuple[Callable[[], ov.Model], dict[str, Verdict]]
REFUSES, UNKNOWN, TAKES = Verdict.REFUSES, Verdict.UNKNOWN, Verdict.TAKES
CASES: dict[str, Case] = {
    "an operation that is not imported": (models.with_unsupported, {"operation.unsupported": REFUSES}),
    "it is folded": (models.folded, {}),
    "it is in a body": (models.branch, {"operation.unsupported": REFUSES}),
    "one that is converted first": (lambda: models.unary(lambda x: ops.gelu(x, "erf"), 1, 4), {}),
    "SoftSign": (lambda: models.unary(opset9.softsign, 1, 4), {}),
    "IsInf": (lambda: models.unary(lambda x: ops.convert(opset10.is_inf(x), "f32"), 1, 4), {}),
    "another version": (models.older_gather, {"operation.version": UNKNOWN}),
    "lengths that are equal": (lambda: models.recurrent("gru"), {}),
    "lengths that differ": (lambda: models.recurrent("lstm", (2, 3)), {"operation.constant-input": REFUSES}),
    "lengths of an input": (lambda: models.recurrent("lstm", None), {}),
    "lengths of an input, GRU": (
        lambda: models.recurrent("gru", None), {"operation.constant-input": REFUSES},
    ),
    "a clip": (lambda: models.recurrent("gru", clip=2.0), {"operation.attribute": REFUSES}),
    "other activations": (
        lambda: models.recurrent("lstm", activations=["sigmoid", "relu", "tanh"]),
        {"operation.attribute": REFUSES},
    ),
    "buckets in i64": (
        lambda: models.unary(
            lambda x: ops.convert(ops.bucketize(x, ops.constant(models.EDGES), "i64"), "f32"), 4
        ),
        {"operation.attribute": REFUSES},
    ),
    "a sum of updates": (
        lambda: models.unary(
            lambda x: ops.scatter_nd_update(
                x, ops.constant(np.array([[1]])), ops.constant(np.ones(1, np.float32)), "sum"
            ),
            4,
        ),
        {"operation.attribute": REFUSES},
    ),
    "a variable axis": (
        lambda: models.model(
            ops.gather(
                x := models.data(2, 2), ops.constant([0]), axis := models.data(kind=np.int32, name="axis"),
            ),
            x, axis,
        ),
        {"operation.constant-input": REFUSES, "shape.inferred": UNKNOWN},
    ),
    "same_upper": (lambda: models.convolution(1, "same_upper"), {}),
    "same_upper with strides": (
        lambda: models.convolution(2, "same_upper"), {"operation.same-upper": UNKNOWN},
    ),
    "256 levels": (models.quantised, {}),
    "17 levels": (lambda: models.quantised(17), {"operation.quantisation-levels": UNKNOWN}),
    "a scale below zero": (lambda: models.quantised(falling=True), {}),
    "pads of 0 or more": (lambda: models.pad(1), {}),
    "a negative pad": (lambda: models.pad(-1), {"operation.pad-negative": REFUSES}),
    "a mode that has a downgrade": (lambda: models.resize("linear_onnx"), {}),
    "a mode that has none": (
        lambda: models.resize("bilinear_pillow"), {"operation.interpolate-pillow": REFUSES},
    ),
    "a slice with variable bounds": (
        models.slice_up_to_an_input,
        {"operation.slice": UNKNOWN, "shape.inferred": UNKNOWN, "type.integers-of-64-bits": TAKES},
    ),
    "f64": (lambda: models.unary(ops.relu, 1, 4, kind=np.float64), {"type.f64": UNKNOWN}),
    "f64 inside": (
        lambda: models.unary(lambda x: ops.convert(ops.relu(ops.convert(x, "f64")), "f32"), 4),
        {"type.f64": UNKNOWN},
    ),
    "f64 that is folded": (
        lambda: models.unary(lambda x: ops.add(x, ops.convert(ops.constant(np.ones(4)), "f32")), 4), {},
    ),
    "i64": (lambda: models.unary(ops.negative, 1, 4, kind=np.int64), {"type.integers-of-64-bits": TAKES}),
    "bf16": (lambda: models.unary(ops.relu, 1, 4, kind=ov.Type.bf16), {}),
    "one bit": (
        lambda: models.unary(lambda x: ops.convert(x, "f32"), 8, kind=ov.Type.u1),
        {"type.unsupported": REFUSES},
    ),
    "text": (
        lambda: models.unary(lambda x: ops.reshape(x, ops.constant([4]), special_zero=False), 1, 4,
                             kind=ov.Type.string),
        {"type.unsupported": REFUSES},
    ),
    "open dimensions": (lambda: models.unary(ops.relu, OPEN, OPEN), {"shape.unbounded": REFUSES}),
    "an open batch": (lambda: models.unary(ops.relu, OPEN, 4), {"shape.batch": UNKNOWN}),
    "bounds": (lambda: models.unary(ops.relu, UP_TO_8, 4), {"shape.bounded": UNKNOWN}),
    "sizes that follow from values": (
        lambda: models.unary(ops.non_zero, 4, 5),
        {"shape.inferred": UNKNOWN, "type.integers-of-64-bits": TAKES},
    ),
    "an open rank": (
        lambda: models.model(ops.relu(x := ops.parameter(ov.PartialShape.dynamic(), np.float32)), x),
        {"shape.rank-open": REFUSES},
    ),
    "five dimensions": (lambda: models.unary(ops.relu, 1, 1, 1, 2, 4), {}),
    "six dimensions": (lambda: models.unary(ops.relu, 1, 1, 1, 1, 2, 4), {"rank.argument": REFUSES}),
    "six dimensions inside": (models.through_six_dimensions, {"rank.inner": UNKNOWN}),
    "a state": (lambda: models.state(1), {}),
    "a state that grows": (lambda: models.state(OPEN), {"state.unbounded": REFUSES}),
    "a state with a bound": (lambda: models.state(UP_TO_8), {"state.bounded": UNKNOWN}),
    "a dimension above 32 bits": (
        lambda: models.unary(ops.relu, 2**32), {"size.dimension": REFUSES},
    ),
    "a long name": (
        lambda: models.model(ops.relu(x := models.data(1, name="n" * 256)), x), {"size.name": UNKNOWN},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_model_triggers_exactly_these_rules(name: str) -> None:
    make, expected = CASES[name]
    found = support_of(make())
    assert {finding.rule: finding.verdict for finding in found.findings} == expected
    assert found.verdict == max(expected.values(), default=TAKES, key=lambda verdict: verdict.severity)


def test_every_rule_is_triggered_by_a_model_or_a_property() -> None:
    elsewhere = {  # tested below, or unreachable from OpenVINO's Python API
        *("configuration.tiles", "configuration.precision", "configuration.layers", "type.f8"),
        *("type.f8e8m0", "operation.custom", "operation.pad-variable"),
    }
    assert {rule for _, expected in CASES.values() for rule in expected} | elsewhere == set(rules.RULES)


def test_every_rule_has_a_verifiable_source_and_a_remedy() -> None:
    for rule in rules.RULES.values():
        assert rule.sources, rule.id
        assert rule.expected, rule.id
        assert rule.hint or rule.verdict is TAKES, rule.id
        assert set(rule.platforms) <= set(PLATFORMS), rule.id
        for source in rule.sources:
            assert source.repository.count("/") == 1, rule.id
            assert source.path, rule.id
            assert source.date.startswith("20"), rule.id
        assert any(source.version.startswith("commit ") for source in rule.sources), rule.id


def test_everything_that_a_parser_checks_has_a_rule_or_a_reason() -> None:
    for name, words in operation_table().checked.items():
        kind, _ = name.split()
        if kind in conditions.EXEMPT or kind in conditions.HANDLED or kind.startswith("Reduce"):
            continue
        assert {f"{kind} {word}" for word in words} <= conditions.EXEMPT.keys(), name


def test_every_conversion_is_one_of_the_passes_before_the_import() -> None:
    table = operation_table()
    assert {each for versions in table.converted.values() for each in versions.values()} <= table.passes


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ({}, ()),
        ({"NPU_TILES": "2"}, ("5020",)),
        ({"NPU_TILES": "3"}, ("3720", "5020")),
        ({"NPU_TILES": "6"}, ("3720", "5010", "5020")),
        ({"NPU_TILES": "7"}, tuple(PLATFORMS)),
        ({"INFERENCE_PRECISION_HINT": "f16"}, ()),
        ({"INFERENCE_PRECISION_HINT": "bf16"}, tuple(PLATFORMS)),
        ({"INFERENCE_PRECISION_HINT": "f32"}, tuple(PLATFORMS)),
        ({"NPU_COMPILATION_MODE_PARAMS": f"{HIGHER_PRECISION}=SoftMax,Add_RMSNorm"}, ()),
        ({"NPU_COMPILATION_MODE_PARAMS": f"{HIGHER_PRECISION}=Softmax"}, tuple(PLATFORMS)),
    ],
)
def test_properties_are_refused_by_these_platforms(config: dict[str, str], refused: tuple[str, ...]) -> None:
    model = models.unary(ops.relu, 1, 4)
    assert refused == tuple(name for name in PLATFORMS if support_of(model, name, config).refused)


def test_f8_is_supported_only_on_the_newest_platform() -> None:
    assert {name: element_types.rule_of("f8e4m3", name) for name in PLATFORMS} == {
        "3720": "type.f8",
        "4000": "type.f8",
        "5010": "",
        "5020": "type.f8",
    }


def test_a_refusal_names_its_layers() -> None:
    assert support_of(models.with_unsupported()).refused_layers == {"check"}
    (layer,) = support_of(models.branch()).refused_layers
    assert layer.startswith("choice/")


def test_the_table_lists_every_operation_of_openvino_once() -> None:
    table = operation_table()
    assert not table.absent & (table.parsed.keys() | table.converted.keys())
    for kind, versions in table.converted.items():
        assert not versions.keys() & table.parsed.get(kind, frozenset()), kind
    named = {name for _, name in Versions.read(Path(ov.__file__).parent / "include/openvino").opsets}
    assert named <= table.absent | table.parsed.keys() | table.converted.keys()
    # operations that passed a test of the report are accepted today, or folded
    passed = {name for name, (count, _) in table.conformance.items() if count}
    untaken = {
        name for name in passed if not (table.is_parsed(*name.split()) or table.conversion(*name.split()))
    }
    assert untaken == {"PriorBoxClustered opset1"}


@pytest.mark.parametrize("name", CATALOGUE)
def test_real_models_are_accepted_only_with_static_shapes(name: str) -> None:
    model = ov.Core().read_model(get(name))
    as_it_is = support_of(model)
    expected = {"magika": UNKNOWN, "silero-vad": TAKES}  # the latter has static shapes only
    assert as_it_is.verdict is expected.get(name, REFUSES)
    model.reshape({key: list(shape) for key, shape in CATALOGUE[name].shapes.items()})
    for platform in PLATFORMS:
        found = support_of(model, platform)
        assert (found.verdict, found.refused) == (TAKES, ())
        assert sum(each.count for each in found.operations) > 50


def test_a_result_can_be_written_as_json() -> None:
    found = support_of(models.with_unsupported())
    document = json.loads(msgspec.json.encode(found))
    assert document["findings"][0]["sources"][0]["path"] == rules.IMPORTER.path


def test_an_unknown_operation_is_judged_as_custom() -> None:
    graph = read_graph(models.unary(ops.relu, 1, 4))
    relu = next(graph.of_type("Relu"))
    assert operations.judge(graph, replace(relu, type="Mine", opset="mine")).rule == "operation.custom"
