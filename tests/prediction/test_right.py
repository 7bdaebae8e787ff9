"""Accuracy prediction: the layer where a model goes wrong in f16, and the f32 list that repairs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.emulator.arithmetic import common_passes
from softnpu.emulator.arithmetic.settings import MODE_PARAMS, Arithmetic
from softnpu.plugin import Core
from softnpu.tools.compare.feeds import Given
from softnpu.tools.predict import Right, Rightness, Samples, Trouble, predict
from softnpu.tools.predict.right import measuring, running, samples
from softnpu.tools.predict.right.measuring import error_of, extent_of
from softnpu.tools.predict.right.points import Point, Points
from softnpu.tools.predict.right.repairing import to_keep_in_f32
from softnpu.tools.predict.right.result import Error
from softnpu.tools.predict.right.running import Runs
from softnpu.tools.shared.failures import ToolError
from tests.arithmetic.models import F32, Array, computed, constant, convolution
from tests.prediction.overflowing import CASES, Case, in_a_body

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("openvino_core")]


def judged(model: ov.Model, given: Sequence[Array] = (), **config: str) -> Right:
    """Return the prediction for a model with these inputs, in order, or generated ones."""
    names = [parameter.friendly_name for parameter in model.get_parameters()]
    arrays = dict(zip(names, given, strict=True)) if given else {}
    found = predict(model, ["4000"], config=config, samples=Samples(arrays=arrays), only=["right"])
    return found.right["4000"]


def _listed(setting: str, saturates: bool) -> Arithmetic:
    return Arithmetic(saturates, Arithmetic.of({MODE_PARAMS: setting}).kept)


# ---------------------------------------------------------------- known cases


SHORTEST: dict[str, tuple[str, ...]] = {
    "feed_forward": ("Add", "FullyConnected", "MatMul", "RMS"),
    "add_before_norm": ("RMS",),
    "large_mvn": ("MVN", "MVN6"),
    "absorbed": ("Add", "Power", "ReduceMean", "Sqrt", "Subtract"),
    "large_logits": ("FullyConnected", "MatMul", "SoftMax"),
    "coarse_logits": ("FullyConnected", "MatMul", "SoftMax"),
}
"""The lists for saturating overflows; infinities need others."""


@pytest.mark.parametrize("saturates", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_the_layer_is_named_and_the_list_makes_it_right(
    openvino_core: ov.Core, name: str, saturates: bool
) -> None:
    case = CASES[name]()
    given = list(case.given)
    found = judged(case.model, given, NPU_F16_OVERFLOW="SATURATE" if saturates else "INFINITY")
    assert found.verdict is Rightness.WRONG
    assert found.causes[0].layer == case.layers[0]
    assert found.causes[0].trouble is (Trouble.CANCELS if name == "coarse_logits" else Trouble.OVERFLOWS)
    assert found.repair is not None
    assert found.repair.smallest
    assert not saturates or found.repair.layers == SHORTEST[name]
    exact = openvino_core.compile_model(case.model, "CPU", F32)(given)[0]
    (proof,) = computed(openvino_core, case.model, given, _listed(found.repair.setting, saturates))
    assert error_of(proof, exact).worst < 0.01
    assert found.repair.outputs[0].error.worst < 0.01
    kept = _listed(found.repair.setting, saturates).kept
    for left_out in kept:
        others = kept - {left_out}
        (value,) = computed(openvino_core, case.model, given, Arithmetic(saturates, others))
        assert not error_of(value, exact).worst < 0.05, f"{left_out} is not needed"


def test_the_largest_value_is_reported_with_its_place() -> None:
    case = CASES["feed_forward"]()
    first = judged(case.model, list(case.given)).causes[0]
    nodes = {node.friendly_name: node for node in case.model.get_ordered_ops()}
    model = ov.Model([ops.result(nodes["wo"])], case.model.get_parameters())
    value = ov.Core().compile_model(model, "CPU", F32)(list(case.given))[0]
    assert first.largest == pytest.approx(float(np.abs(value).max()), rel=1e-5)
    assert abs(float(value[first.index])) == pytest.approx(first.largest, rel=1e-5)
    assert (first.beyond, first.elements) == (int((np.abs(value) > 65504).sum()), value.size)


def test_a_finite_output_may_be_wrong_and_its_successors_inherit_it() -> None:
    case = CASES["absorbed"]()
    found = judged(case.model, list(case.given), NPU_F16_OVERFLOW="INFINITY")
    assert math.isfinite(found.outputs[0].error.worst)
    assert [each.layer for each in found.causes[:2]] == ["norm/square", "norm/squares"]
    assert "norm/normal" in [each.layer for each in found.inherits]


def test_a_step_of_an_operation_has_the_name_of_the_operation() -> None:
    case = CASES["large_mvn"]()
    (cause,) = judged(case.model, list(case.given)).causes
    assert (cause.layer, cause.type, cause.step) == ("mvn", "MVN", "squares")


def test_an_overflow_reaches_its_readers_in_f32_and_a_cancellation_its_sources() -> None:
    def point(key: str, *reads: str, after: tuple[str, ...] = ()) -> Point:
        return Point(key, key, "Add", 0, (f"{key}/reshape", key), reads, after)

    graph = Points({"a": point("a"), "b": point("b", "a", after=("c",)), "c": point("c", "b")}, (("c",),))

    def listed(trouble: Trouble) -> list[str]:
        return list(to_keep_in_f32(graph, {"b": trouble}, lambda layer: "reshape" in layer))

    assert listed(Trouble.OVERFLOWS) == ["b", "c"]
    assert listed(Trouble.CANCELS) == ["b/reshape", "b", "a"]


def test_an_existing_list_is_extended() -> None:
    case = CASES["large_logits"]()
    params = "optimization-level=1 compute-layers-with-higher-precision=Softmax"
    repair = judged(case.model, list(case.given), NPU_COMPILATION_MODE_PARAMS=params).repair
    assert repair is not None
    assert (
        repair.setting
        == "optimization-level=1 compute-layers-with-higher-precision=FullyConnected,MatMul,SoftMax"
    )


# ---------------------------------------------------------------- other troubles, and none


def _vanishing() -> Case:
    x = ops.parameter([4, 8], np.float32, name="x")
    small = ops.multiply(x, ops.constant(np.float32(1e-5)))
    tiny = ops.multiply(small, ops.constant(np.float32(1e-4)))
    tiny.set_friendly_name("tiny")
    large = ops.multiply(ops.abs(tiny), ops.constant(np.float32(1e4)))
    given = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)
    output = ops.multiply(large, ops.constant(np.float32(1e4)))
    return Case(ov.Model([ops.result(output)], [x]), ("tiny",), (given,))


def test_vanishing_values_are_named_and_repaired() -> None:
    case = _vanishing()
    found = judged(case.model, case.given)
    assert [(each.layer, each.trouble) for each in found.causes] == [("tiny", Trouble.VANISHES)]
    assert found.repair is not None
    assert found.repair.layers == ("Abs", "Multiply")


def _pictures() -> ov.Model:
    x = ops.parameter([1, 3, 32, 32], np.float32, name="x")
    weights = constant(1, 8, 3, 3, 3)
    first = ops.relu(ops.convolution(x, weights, [1, 1], [1, 1], [1, 1], [1, 1]))
    return ov.Model([ops.result(ops.softmax(ops.swish(convolution(first)), 1))], [x])


def _masked() -> ov.Model:
    """The mask of an attention, whose lowest f32 exceeds f16."""
    x, mask = ops.parameter([1, 6, 6], np.float32, name="x"), ops.parameter([1, 1, 6], np.int64, name="ids")
    hidden = ops.subtract(ops.constant(np.float32(1)), ops.convert(ops.minimum(mask, ops.constant(1)), "f32"))
    lowest = ops.multiply(hidden, ops.constant(np.float32(-3.4e38)))
    lowest.set_friendly_name("lowest")
    masked = ops.add(x, lowest)
    masked.set_friendly_name("masked")
    return ov.Model([ops.result(ops.softmax(masked, -1))], [x, mask])


def _improbable() -> ov.Model:
    x = ops.parameter([1, 8], np.float32, name="x")
    return ov.Model([ops.result(ops.sigmoid(ops.subtract(x, ops.constant(np.float32(20)))))], [x])


def _improbable_boxes() -> ov.Model:
    """Scores of boxes and classes, all under 1e-6, and their product."""
    x, y = (ops.parameter([1, size, 8], np.float32, name=name) for name, size in (("x", 1), ("y", 4)))
    scores = [ops.sigmoid(ops.subtract(each, ops.constant(np.float32(9)))) for each in (x, y)]
    return ov.Model([ops.result(ops.multiply(*scores))], [x, y])


@pytest.mark.parametrize("build", [_pictures, _masked, _improbable, _improbable_boxes])
def test_an_accurate_model_raises_no_alarm(build: Callable[[], ov.Model]) -> None:
    found = judged(build())
    assert found.verdict is Rightness.RIGHT
    assert not found.causes
    assert found.repair is None
    assert found.samples == samples.COUNT


def test_a_batch_norm_is_folded_into_its_convolution_as_in_openvino() -> None:
    """The sums are large and similar: rounded before the mean is subtracted, they would be equal. The mean
    itself is f16: it becomes the bias."""
    weights = 700 + 2 * np.arange(12, dtype=np.float32).reshape(4, 3, 1, 1)
    x = ops.parameter([1, 3, 8, 8], np.float32, name="x")
    sums = ops.convolution(x, ops.constant(weights), [1, 1], [0, 0], [0, 0], [1, 1])
    means = weights.sum((1, 2, 3))
    others = (ops.constant(np.full(4, each, np.float32)) for each in (1, 0))
    variance = ops.constant(np.full(4, 1 - 1e-5, np.float32))
    normal = ops.batch_norm_inference(sums, *others, ops.constant(means), variance, 1e-5)
    steps = np.random.default_rng(1).integers(-4, 5, (1, 3, 8, 8))
    found = judged(ov.Model([ops.result(normal)], [x]), [(1 + steps / 1024).astype(np.float32)])
    assert found.outputs[0].error.worst < 0.001


def test_an_overflow_without_effect_is_reported_as_such() -> None:
    x = np.random.default_rng(1).normal(size=(1, 6, 6)).astype(np.float32)
    found = judged(_masked(), [x, np.array([[[1, 1, 0, 1, 0, 1]]])])
    assert found.verdict is Rightness.RIGHT
    assert [each.layer for each in found.without_effect] == ["lowest", "masked"]


def test_a_body_is_counted_although_it_cannot_be_observed() -> None:
    case = in_a_body()
    found = judged(case.model, case.given)
    assert found.verdict is Rightness.WRONG
    assert [(each.layer, each.inside, each.beyond) for each in found.causes] == [("large", True, 8)]


def test_where_f32_has_no_number_nothing_is_right_or_wrong() -> None:
    """A row of attention that is masked as a whole, and outputs of nothing else."""
    x = ops.parameter([1, 2, 4], np.float32, name="x")
    mask = np.zeros((1, 2, 4), np.float32)
    mask[0, 1] = -np.inf
    rows = ops.softmax(ops.add(x, ops.constant(mask)), 2)
    found = judged(ov.Model([ops.result(rows)], [x]))
    assert (found.verdict, found.nan) == (Rightness.RIGHT, 8), "of two samples"
    found = judged(ov.Model([ops.result(ops.sqrt(ops.negative(ops.exp(x))))], [x]))
    assert (found.verdict, "NaN in f32" in found.obstacle) == (Rightness.UNKNOWN, True)


def test_a_model_that_cannot_run_is_unknown_with_the_reason() -> None:
    x = ops.parameter(ov.PartialShape([-1, 4]), np.float32, name="x")
    model = ov.Model([ops.result(ops.relu(x))], [x])
    found = judged(model)
    assert (found.verdict, "open shape" in found.obstacle) == (Rightness.UNKNOWN, True)
    assert judged(model, [np.zeros((3, 4), np.float32)]).verdict is Rightness.RIGHT


def test_an_input_that_cannot_be_generated_is_an_obstacle() -> None:
    x = ops.parameter([1], ov.Type.u4, name="x")
    found = judged(ov.Model([ops.result(ops.convert(x, "f32"))], [x]))
    assert (found.verdict, found.obstacle) == (Rightness.UNKNOWN, "input 'x': u4; expected numbers")


def test_random_numbers_are_the_same_in_every_run() -> None:
    x = ops.parameter([64], np.float32, name="x")
    ends = [ops.constant(np.float32(each)) for each in (0, 1)]
    drawn = ops.random_uniform(ops.constant([64]), *ends, "f32", 0, 0)
    assert judged(ov.Model([ops.result(ops.multiply(x, drawn))], [x])).verdict is Rightness.RIGHT


# ---------------------------------------------------------------- observation


def _runs() -> tuple[Runs, ov.Model, list[Array]]:
    model = _pictures()
    common_passes.run(model)
    given = [np.random.default_rng(3).random((1, 3, 32, 32)).astype(np.float32)]
    return Runs(model, [given], Arithmetic()), model, given


def test_observation_changes_no_bit_and_the_device_agrees(shared_core: Core) -> None:
    runs, model, given = _runs()
    f16 = runs.rewrite(Arithmetic())
    (looked,) = [
        [np.array(value) for value, _ in inference.outputs] for inference in runs.compare_points(f16)
    ]
    (plain,) = [[np.array(value) for value, _ in inference.outputs] for inference in runs.outputs(f16)]
    np.testing.assert_array_equal(looked[0], plain[0])
    compiled = shared_core.compile_model(model, "NPU", {"INFERENCE_PRECISION_HINT": "f16"})
    np.testing.assert_array_equal(compiled(given)[0], plain[0])


def test_a_large_model_is_read_in_parts_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["feed_forward"]()
    whole = judged(case.model, list(case.given))
    monkeypatch.setattr(running, "LARGEST_PORTION", 4096)
    parts = judged(case.model, list(case.given))
    assert parts.causes == whole.causes
    assert "parts" in parts.notes[0]


ERRORS: dict[str, tuple[list[float], list[float], Error]] = {
    "equal": ([1, 2], [1, 2], Error(0, 0)),
    "off": ([3, 4.5], [3, 4], Error(0.1, 0.125)),
    "not finite": ([math.inf, 1], [5, 1], Error(math.inf, math.inf)),
    "nan": ([math.nan, 1], [5, 1], Error(math.inf, math.inf)),
    "nan in f32": ([5, 1], [math.nan, 1], Error(0, 0)),
    "infinite in both": ([65504, 1], [math.inf, 1], Error(0, 0)),
    "beyond squares": ([2e30, 0], [1e30, 0], Error(1, 1)),
    "nothing expected": ([1, 0], [0, 0], Error(math.inf, math.inf)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_relative_to_the_reference(name: str) -> None:
    ours, theirs, expected = ERRORS[name]
    found = error_of(np.array(ours, np.float32), np.array(theirs, np.float32))
    assert (found.mean, found.peak) == pytest.approx((expected.mean, expected.peak), rel=1e-5)


def test_errors_have_words() -> None:
    found = [str(Error(0, each)) for each in (0.0012, 0.712, 24, math.inf)]
    assert found[:3] == ["0.12%", "71%", "24 times its size"]
    assert found[3].startswith("infinitely much")


def test_the_extent_covers_finite_values() -> None:
    values = np.array([[1, -70000], [math.inf, math.nan]], np.float32)
    assert extent_of(values) == measuring.Extent(70000.0, (0, 1), 1, 4)
    assert extent_of(np.array([3e-6], np.float32)).vanishes
    assert not extent_of(np.zeros(1, np.float32)).vanishes


# ---------------------------------------------------------------- inputs


@pytest.mark.parametrize(
    "scale",
    [
        lambda x: ops.divide(x, ops.constant(np.float32(255))),
        lambda x: ops.multiply(x, ops.constant(np.float32(1 / 255))),
    ],
)
def test_generated_inputs_suit_the_model(scale: Callable[[ov.Node], ov.Node]) -> None:
    ids = ops.parameter([2, 64], np.int64, name="ids")
    mask = ops.parameter([2, 64], np.int64, name="attention_mask")
    picture = ops.parameter([1, 32, 32, 3], np.float32, name="picture")
    rate = ops.parameter([], np.int64, name="sr")
    scaled = scale(ops.transpose(picture, ops.constant([0, 3, 1, 2])))
    words = ops.gather(constant(1, 7, 4), ops.convert(ids, "i32"), ops.constant(0))
    results = [ops.result(each) for each in (scaled, words, ops.negative(mask), ops.negative(rate))]
    model = ov.Model(results, [ids, mask, picture, rate])
    made = samples.make(model, Given(), 3, seed=1)
    assert len(made.steps) == 3
    tokens, ones, pixels, hertz = made.steps[0]
    assert sorted(set(tokens.reshape(-1))) == list(range(7))
    assert set(ones.reshape(-1)) == {1}
    assert pixels.min() >= 0
    assert 128 < pixels.max() <= 255
    assert hertz == 16000
    again = samples.make(model, Given(), 3, seed=1)
    np.testing.assert_array_equal(made.steps[2][2], again.steps[2][2])
    assert not np.array_equal(made.steps[0][2], made.steps[1][2])


def test_given_inputs_determine_the_number_of_samples() -> None:
    x = ops.parameter([1, 4], np.float32, name="x")
    model = ov.Model([ops.result(ops.relu(x))], [x])
    assert len(samples.make(model, Given(arrays={"x": np.zeros((1, 4), np.float32)}), None, 0).steps) == 1
    assert len(samples.make(model, Given(arrays={"x": np.zeros((5, 1, 4), np.float32)}), None, 0).steps) == 5
    with pytest.raises(ToolError, match="expected float32"):
        judged(model, [np.zeros((1, 5), np.float32)])
