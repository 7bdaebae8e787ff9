"""`softnpu predict` and the function behind it: their output for people and programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.emulator.interface.result import Refused
from softnpu.emulator.platforms import PLATFORMS
from softnpu.emulator.prediction.support.rules import RULES
from softnpu.tools.predict import (
    Hint,
    LayerTrouble,
    Right,
    Rightness,
    Samples,
    Trouble,
    Verdict,
    predict,
)
from softnpu.tools.predict.right_section import RightSection
from softnpu.tools.predict.summary import labels, summarise
from softnpu.tools.shared.failures import ToolError
from tests.prediction import models
from tests.prediction.overflowing import CASES
from tests.support.cli import softnpu

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An IR with one layer that is refused."""
    path = tmp_path_factory.mktemp("predict") / "refused.xml"
    ov.save_model(models.with_unsupported(), path, compress_to_fp16=False)
    return path


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is wrong in f16, and inputs that show it."""
    path = tmp_path_factory.mktemp("predict") / "absorbed.xml"
    case = CASES["absorbed"]()
    ov.save_model(case.model, path, compress_to_fp16=False)
    np.savez(path.with_suffix(".npz"), x=case.given[0])
    return path


def test_the_text_has_verdict_layer_rule_source_and_remedy(refused: Path) -> None:
    shown = softnpu("predict", refused, "--details").words
    rule = RULES["operation.unsupported"]
    for words in (
        "refused, 9 operations\n"
        "  will it run:      no: Meteor Lake, Lunar Lake, Panther Lake, Wildcat Lake "
        "(operation SearchSorted ",
        f"  change first:     {rule.hint}: operation SearchSorted",
        "Will it compile?\n  3720, 4000, 5010, 5020: refuses;",
        "  refuses: operation SearchSorted (opset15): the compiler does not import it  "
        "[operation.unsupported]\n    1 layer: check\n",
        f"    source: {rule.sources[0]}\n",
        f"What to change?\n  1. {rule.hint}\n",
        "platforms: 3720 (Meteor Lake), 4000 (Lunar Lake), 5010 (Panther Lake), 5020 (Wildcat Lake)\n",
        "How fast?",
        "5020 (Wildcat Lake), whose speed no public source has",
        "Tanh, opset1",
        "19 of 21",
    ):
        assert words in shown, shown


def test_the_answer_is_five_lines_by_codename_and_folds_the_rest(digits: Path) -> None:
    first, *lines, times, more = softnpu(
        "predict", digits, "--platform", "lunar-lake,3720"
    ).words.splitlines()
    assert first.startswith("digits, ")
    assert [line.partition(":")[0].strip() for line in lines] == [
        "will it run",
        "will it be right",
        "how fast",
        "what bounds it",
        "change first",
    ]
    assert lines[0].endswith(" yes: Lunar Lake, Meteor Lake")
    assert " yes, at most 0.0" in lines[1]
    assert re.search(
        r"Lunar Lake \d+ us \(\d+ us to \d.*\) in a 288V, \d+ a second; Meteor Lake .*155H", lines[2]
    )
    assert "the host (Lunar Lake 9" in lines[3]
    assert "keep several requests in flight" in lines[4]
    assert "lone inference" in times
    assert "--details" in more
    given = softnpu("predict", digits, "--host", "265KF,ddr=50", "--only", "speed").words
    assert "Meteor Lake" in given
    assert "265KF,ddr=50" in given
    assert "Lunar Lake" not in given


def test_two_models_are_shown_side_by_side_under_names_that_differ(
    refused: Path, digits: Path, tmp_path: Path
) -> None:
    shown = softnpu("predict", digits, refused, "--platform", "4000", COLUMNS="200").words
    assert re.search(r"digits +refused +\n", shown)
    assert re.search(r"will it run +yes: Lunar Lake +no: Lunar Lake", shown)
    assert re.search(
        r"4000 \(Lunar Lake\): (equally fast|(digits|refused) is \d\.\d times as fast as )", shown
    )
    documents = json.loads(softnpu("predict", digits, refused, "--only", "compile", "--json").words)["models"]
    assert {name: each["support"]["4000"]["verdict"] for name, each in documents.items()} == {
        "digits": "takes",
        "refused": "refuses",
    }
    assert labels([Path("a/b/model.xml"), Path("a/c/model.xml")]) == ["b/model", "c/model"]
    shown = softnpu("predict", digits, refused, "--only", "compile", "--shape", "image=1,1,8,8").words
    assert re.search(r"will it run +yes: .* no: ", shown, re.DOTALL), "the other has no such input"
    told = softnpu("predict", digits, refused, "--shape", "y=1,2").misuse
    assert "--shape y: none of the models has such an input; expected one of: image, x" in told
    told = softnpu("predict", digits, refused, "--html", tmp_path / "page.html").misuse
    assert "--html: 2 models; expected one" in told


def test_json_output_is_one_document(refused: Path) -> None:
    found = json.loads(softnpu("predict", refused, "--json", "--platform", "3720,4000").words)
    assert found["platforms"] == list(found["support"]) == ["3720", "4000"]
    answer = found["support"]["4000"]
    assert answer["verdict"] == "refuses"
    assert [(each["rule"], each["layers"]) for each in answer["findings"]] == [
        ("operation.unsupported", ["check"])
    ]
    assert {each["type"]: each["verdict"] for each in answer["operations"]}["Relu"] == "takes"
    assert found["hints"][0]["platforms"] == ["3720", "4000"]
    assert found["speed"]["4000"]["all_tiles"]["tiles"] == 6
    assert found["speed"]["4000"]["one_tile"]["latency_us"]["value"] > 0


def test_the_text_names_the_overflowing_layer_with_list_and_proof(overflowing: Path) -> None:
    shown = softnpu("predict", overflowing, "--only", "right", "--inputs", overflowing.with_suffix(".npz"))
    for words in (
        "Will it be right?\n  wrong: 1 of 1 output, off by ",
        "1 sample (absorbed.npz), 12 roundings looked at",
        "overflows: norm/square (Power)\n    largest value in f32 1.41753e+07 at [0,5,2], 318 of 384 beyond",
        "3 layers inherit it: norm/root, norm/normal, ",
        "right with NPU_COMPILATION_MODE_PARAMS=compute-layers-with-higher-precision="
        "Add,Power,ReduceMean,Sqrt,Subtract\n    7 of 11 operations in f32; run with it: at most 0.0",
        "1. set NPU_COMPILATION_MODE_PARAMS to ",
        "why: norm/square overflows in f16; run with it, outputs are at most 0.0",
    ):
        assert words in shown.words, shown.words
    assert "Will it compile?" not in shown.words


def test_json_output_says_whether_the_result_is_right(overflowing: Path) -> None:
    arguments = ("predict", overflowing, "--only", "right", "--json", "--check")
    given = ("--inputs", overflowing.with_suffix(".npz"))
    failed = softnpu(*arguments, *given, "--config", "NPU_F16_OVERFLOW=INFINITY")
    answer = json.loads(failed.out)["right"]
    assert failed.code == 1
    assert (answer["verdict"], answer["overflow"]) == ("wrong", "INFINITY")
    assert answer["causes"][0]["layer"] == "norm/square"
    assert answer["causes"][0]["error"] == {"mean": None, "peak": None}, "JSON has no infinity"
    repaired = softnpu(
        *arguments, *given, "--config", f"NPU_COMPILATION_MODE_PARAMS={answer['repair']['setting']}"
    )
    assert repaired.code == 0
    assert json.loads(repaired.words)["right"]["verdict"] == "right"


def test_a_page_is_complete_and_needs_no_network(refused: Path, overflowing: Path, tmp_path: Path) -> None:
    page, inputs = tmp_path / "page.html", overflowing.with_suffix(".npz")
    told = softnpu("predict", overflowing, "--inputs", inputs, "--platform", "4000", "--html", page, "--json")
    document = json.loads(told.words)
    text = page.read_text()
    right, speed = document["right"], document["speed"]["4000"]["all_tiles"]
    expected = [cause["layer"] for cause in right["causes"]] + [layer["name"] for layer in speed["layers"]]
    assert all(name in text for name in expected)
    assert right["repair"]["setting"] in text.replace("&#34;", '"')
    assert "wrong in f16" in text
    assert text.index("will it run") < text.index("<details") < text.index("overhead")
    assert not re.search(r"(src|href)=\"?(?!data:)[a-z]", text)
    softnpu("predict", refused, "--only", "compile", "--html", page)
    text = page.read_text()
    assert "refuses" in text
    assert "SearchSorted" in text
    assert "How fast?" not in text
    assert "no such directory" in softnpu("predict", refused, "--html", tmp_path / "none" / "p.html").misuse


def test_an_error_without_a_number_has_words() -> None:
    found = predict(models.beyond_f16(), config={"NPU_F16_OVERFLOW": "INFINITY"}, only=["right"])
    assert summarise(found)[0].answer.startswith("no, off by infinitely much (infinity or NaN on one side")


def test_the_exit_code_reports_the_verdict_only_on_request(refused: Path, digits: Path) -> None:
    assert [
        softnpu("predict", refused).code,
        softnpu("predict", refused, "--check").code,
        softnpu("predict", digits, "--check").code,
    ] == [0, 1, 0]


def test_unpredictable_models_are_reported_in_one_line(refused: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.npz"
    np.savez(other, y=np.zeros((1, 8), np.float32))
    for arguments, words in (
        ((refused, "--platform", "3721"), "expected 3720 or 4000 or 5010"),
        ((refused, "--shape", "y=1,2"), "--shape y: the model has no such input; expected one of: x"),
        ((refused, "--shape", "x=0"), "expected positive integers"),
        ((refused, "--config", "NPU_TILES"), "expected KEY=VALUE"),
        ((refused, "--config", "NPU_TILSE=2"), "Did you mean NPU_TILES"),
        ((refused, "--host", "265FK"), "one of 155H, 265KF, 288V, 258V"),
        ((refused, "--host", "265KF", "--platform", "4000"), "--host 265KF: a computer with platform 3720"),
        ((refused, "--host", "265KF", "--platform", "3720,4000"), "expected that platform alone, or none"),
        ((refused, "--only", "size"), "expected some of compile, right, speed"),
        (
            (refused, "--inputs", "y=nothing.npy"),
            "--inputs y: the model has no such input; expected one of: x",
        ),
        ((refused, "--inputs", other), "--inputs y: the model has no such input; expected one of: x"),
    ):
        assert words in softnpu("predict", *arguments).misuse, arguments
    assert "No such file" in softnpu("predict", refused, "--inputs", "x=nothing.npy").complaint


def test_the_function_predicts_each_platform_and_leaves_the_model_unchanged() -> None:
    model = models.unary(ops.relu, -1, -1)
    as_it_is = predict(model)
    assert as_it_is.platforms == tuple(PLATFORMS)
    assert {support.verdict for support in as_it_is.support.values()} == {Verdict.REFUSES}
    assert "open shape" in as_it_is.speed["4000"].obstacle
    assert "--shape x=?,? with numbers for ?" in as_it_is.hints[0].text
    reshaped = predict(model, ["lunar-lake"], shapes={"x": (1, 4)})
    assert reshaped.support["4000"].verdict is Verdict.TAKES
    assert reshaped.speed["4000"].all_tiles is not None
    assert [hint for hint in reshaped.hints if hint.weight != 1] == []
    assert model.inputs[0].partial_shape.is_dynamic


def test_hints_name_their_platforms_with_refusals_first() -> None:
    bounded = models.unary(ops.relu, 4, ov.Dimension(1, 8))
    hints = [hint for hint in predict(bounded, config={"NPU_TILES": "3"}).hints if hint.weight != 1]
    assert [(hint.reason.split()[0], hint.platforms) for hint in hints] == [
        ("NPU_TILES=3", ("3720",)),
        ("NPU_TILES=3", ("5020",)),
        ("bounded", ("3720", "4000", "5010", "5020")),
    ]
    assert all(isinstance(hint, Hint) for hint in hints)
    assert hints[2].text.startswith("give every input a static shape: --shape x=4,? with numbers for ?")


def test_what_no_list_mends_has_a_hint_that_comes_before_speed() -> None:
    cause = LayerTrouble(layer="large", type="Multiply", trouble=Trouble.OVERFLOWS, largest=1e6, inside=True)
    (hint,) = RightSection().hints({"4000": Right(verdict=Rightness.WRONG, causes=(cause,))})
    assert hint.weight == 2
    assert hint.reason == "large overflows in f16, and no list of layers in f32 was found"


def test_the_function_refuses_unusable_arguments(tmp_path: Path) -> None:
    model, nothing = models.unary(ops.relu, 1, 4), tmp_path / "nothing.xml"
    nothing.write_text("nothing")
    with pytest.raises(ToolError, match="expected a file that OpenVINO reads"):
        predict(nothing)
    with pytest.raises(Refused, match="expected 3720 or 4000 or 5010"):
        predict(model, ["9999"])
    with pytest.raises(ToolError, match="no such input"):
        predict(model, shapes={"nobody": (1, 4)})
    with pytest.raises(ToolError, match="no such input"):
        predict(model, samples=Samples(arrays={"nobody": np.zeros((1, 4), np.float32)}))
