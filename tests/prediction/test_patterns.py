"""Twenty ways to go wrong in f16: named, and repaired in the compiler's words. Their twins raise no alarm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.emulator.arithmetic import dialect
from softnpu.emulator.arithmetic.settings import HIGHER_PRECISION, MODE_PARAMS, Arithmetic
from softnpu.tools.compare.feeds import Given
from softnpu.tools.predict import Right, Rightness, Samples, predict
from softnpu.tools.predict.right import samples
from softnpu.tools.predict.right.causes import is_wrong
from softnpu.tools.predict.right.measuring import error_of
from softnpu.tools.shared.failures import UsageError
from tests.arithmetic.models import F32, Array, computed, constant
from tests.prediction.overflowing import Case
from tests.prediction.patterns import PATTERNS

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("openvino_core")]


def _inputs(case: Case) -> list[Array]:
    return list(case.given) or list(samples.make(case.model, Given(), 1, 0).steps[0])


def _judged(model: ov.Model, given: list[Array], **config: str) -> Right:
    names = [parameter.friendly_name for parameter in model.get_parameters()]
    chosen = Samples(arrays=dict(zip(names, given, strict=True)))
    return predict(model, ["4000"], config=config, samples=chosen, only=["right"]).right["4000"]


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_named_and_repaired(openvino_core: ov.Core, name: str) -> None:
    case = PATTERNS[name](True)
    given = _inputs(case)
    found = _judged(case.model, given)
    assert found.verdict is Rightness.WRONG
    assert found.causes[0].layer.partition("/")[0] == case.layers[0]
    assert found.repair is not None
    assert all(map(dialect.is_word, found.repair.layers))
    repaired = Arithmetic.of({MODE_PARAMS: found.repair.setting})
    (value,) = computed(openvino_core, case.model, given, repaired)
    assert not is_wrong(error_of(value, openvino_core.compile_model(case.model, "CPU", F32)(given)[0]))


@pytest.mark.parametrize("name", PATTERNS)
def test_its_twin_raises_no_alarm(name: str) -> None:
    case = PATTERNS[name](False)
    found = _judged(case.model, _inputs(case))
    assert (found.verdict, found.causes) == (Rightness.RIGHT, ())


def test_a_sum_with_its_relu_goes_by_the_sums_name() -> None:
    inputs = [ops.parameter([1, 64], np.float32, name=name) for name in ("x", "y")]
    far = [ops.add(each, ops.constant(np.float32(6000))) for each in inputs]
    near = ops.subtract(*far)
    near.set_friendly_name("near")
    given = [np.full((1, 64), each, np.float32) for each in (1.7, 0.2)]
    found = _judged(ov.Model([ops.result(ops.relu(near))], inputs), given)
    assert [(each.layer, each.type) for each in found.causes] == [("near", "Subtract")]


# ---------------------------------------------------------------- inputs and lists


def test_generated_integers_reach_the_range_that_the_graph_gives_them() -> None:
    ids, step = (ops.parameter([1, 4], np.int64, name=name) for name in ("ids", "timestep"))
    places, mask = (
        ops.parameter([1, size], np.int64, name=name)
        for name, size in (("position_ids", 4), ("attention_mask", 300))
    )
    floats = ops.parameter([6], np.float32, name="floats")
    latent = ops.parameter([1, 4, 16, 16], np.float32, name="latent")
    table = constant(1, 900, 2)
    words = ops.gather(table, ops.add(ids, ops.constant(np.int64(2))), ops.constant(0))
    rows = ops.gather(table, ops.convert(ops.floor(floats), "i32"), ops.constant(0))
    ends = [words, rows, *(ops.negative(each) for each in (step, places, mask, latent))]
    inputs = [ids, step, places, mask, floats, latent]
    made = samples.make(ov.Model([ops.result(each) for each in ends], inputs), Given(), 1, 0)
    tokens, steps, positions, ones, indices, values = made.steps[0]
    assert tokens.max() == 897  # two are added
    assert steps.max() == 999
    assert positions.tolist() == [[296, 297, 298, 299]]
    assert set(ones.reshape(-1)) == {1}
    assert indices.max() == 899
    assert values.min() < -1  # four channels are no picture


def test_a_file_or_a_list_that_fits_nothing_is_refused(tmp_path: Path) -> None:
    x = ops.parameter([4], np.float32, name="x")
    model = ov.Model([ops.result(ops.exp(x))], [x])
    nothing, result = tmp_path / "nothing.npz", tmp_path / "result.npz"
    np.savez(nothing)
    model.outputs[0].set_names({"y"})
    np.savez(result, y=np.zeros(4, np.float32))
    for path in (nothing, result):
        with pytest.raises(UsageError, match=path.name):
            predict(model, ["4000"], samples=Samples(files=[str(path)]), only=["right"])
    lists = {MODE_PARAMS: f"{HIGHER_PRECISION}=SoftMax,Add_RMSNorm"}
    with pytest.raises(UsageError, match="no layer of the model; expected types that it has: Exp"):
        predict(model, ["4000"], config=lists, only=["right"])
