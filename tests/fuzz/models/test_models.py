"""Random models on the CPU device and on softnpu: a few in every run, 100,000 with `-m soak`."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import openvino as ov
import pytest

from tests.fuzz.dice import Dice
from tests.fuzz.models import case as cases
from tests.fuzz.models.choice import PLAIN, chosen, every
from tests.fuzz.models.compare import judge
from tests.fuzz.models.findings import Finding
from tests.fuzz.models.graph import Graph, Habits, Skip
from tests.fuzz.models.lane import Lane
from tests.fuzz.models.operations import FAMILIES
from tests.fuzz.models.records import Answer, Refusal, Value, Way
from tests.fuzz.models.shrink import load, save, shrink

_ROOT = Path(__file__).parents[3]
_DIGEST = """
import sys
from pathlib import Path
from tests.fuzz.models.test_models import digest
print(digest("alone", 60, Path(sys.argv[1])))
"""


def digest(seed: str, count: int, folder: Path) -> str:
    """Return a digest of a seed's first cases: serialised models, inputs, ways."""
    made = hashlib.sha256()
    for number in range(count):
        key = cases.Key(seed, number)
        case = cases.make(key)
        ov.serialize(case.model, folder / "model.xml")
        made.update((folder / "model.xml").read_bytes() + (folder / "model.bin").read_bytes())
        made.update(repr((cases.described(case), cases.content(case.steps), chosen(key))).encode())
    return made.hexdigest()


def _fuzz(folder: Path, deadline_s: float, *words: str) -> dict[str, Any]:
    """Run the command once; return its counts. Fail with its output."""
    found = folder / "models.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *words, "--json", str(found)],
        cwd=_ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    print(done.stdout)
    counted: dict[str, Any] = json.loads(found.read_text())
    return counted


@pytest.mark.timeout(620)  # 10 s on an idle machine
def test_random_models_give_the_numbers_of_the_cpu_device(private_dir: Path) -> None:
    counted = _fuzz(private_dir, 600, "--models", "24", "--seed", "suite", "--workers", "1", "--shrinks", "2")
    assert counted["findings"] == []
    assert counted["counts"]["plugin right"] > 12
    assert counted["counts"]["native right"] > 2


@pytest.mark.soak
@pytest.mark.timeout(100_000)
def test_a_hundred_thousand_models(private_dir: Path) -> None:
    workers = str(max(1, len(os.sched_getaffinity(0))))
    counted = _fuzz(private_dir, 99_000, "--models", "100000", "--seed", "soak", "--workers", workers)
    assert counted["findings"] == []


def test_a_case_comes_from_its_number_alone(tmp_path: Path) -> None:
    others = []
    for seed in ("1", "77"):
        (tmp_path / seed).mkdir()
        others.append(
            subprocess.Popen(
                [sys.executable, "-c", _DIGEST, str(tmp_path / seed)],
                cwd=_ROOT,
                env={**os.environ, "PYTHONHASHSEED": seed},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for number in range(60):
        cases.make(cases.Key("before", number))
    here = digest("alone", 60, tmp_path)
    assert [other.communicate(timeout=120)[0].strip() for other in others] == [here, here]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_entry_of_the_catalogue_can_be_built(family: str) -> None:
    for name, entry in FAMILIES[family].items():
        for attempt in range(40):
            graph = Graph(Dice(name, attempt), Habits("f32", 0.1, False, False))
            graph.source(constant=0.0)
            try:
                entry(graph)
                break
            except Skip:
                continue
        else:
            pytest.fail(f"'{name}' was never built")


def test_all_ways_are_taken_in_time() -> None:
    taken = {str(way) for number in range(50_000) for way in chosen(cases.Key("ways", number))}
    assert {str(way) for way in every()} - taken == set()


# ------------------------------------------------------------ the judge


def _answer(kind: str, data: np.ndarray[Any, Any]) -> Answer:
    return Answer(rounds=[[[Value(kind, data.shape, data.tobytes())]]])


_RIGHT = np.array([0.0, 1.5, np.nan], np.float32)


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (_RIGHT, "right"),
        (np.array([-0.0, 1.5, np.nan], np.float32), "wrong"),
        (np.array([0.0, np.nextafter(np.float32(1.5), np.float32(2)), np.nan], np.float32), "wrong"),
        (np.array([0.0, np.nan, np.nan], np.float32), "wrong"),
        (_RIGHT.reshape(3, 1), "wrong"),
        (np.array([0, 0x3FC00000, 0x7FC00001], np.uint32).view(np.float32), "right"),
    ],
)
def test_every_bit_counts_but_those_of_a_nan(other: np.ndarray[Any, Any], kind: str) -> None:
    assert judge(_answer("f32", other), _answer("f32", _RIGHT)).kind == kind


def test_nans_with_other_bits_are_counted() -> None:
    other = np.array([0, 0x3FC00000, 0x7FC00001], np.uint32).view(np.float32)
    assert judge(_answer("f32", other), _answer("f32", _RIGHT)).other_nans == 1


def test_every_round_and_step_is_compared() -> None:
    right = _answer("f32", _RIGHT)
    answer = Answer(rounds=[right.steps, _answer("f32", -_RIGHT).steps])
    verdict = judge(answer, right)
    assert (verdict.kind, verdict.text.split(",")[0]) == ("wrong", "request or round 1")


def test_a_refusal_has_to_be_one_of_both() -> None:
    right, refused = _answer("f32", _RIGHT), Answer(Refusal("compile", "CompileError", "no"))
    assert judge(refused, refused).kind == "refused"
    assert judge(refused, right).kind == "refused alone"
    assert judge(right, refused).kind == "accepted alone"
    assert judge(Answer(Refusal("compile", "KeyError", "no", typed=False)), refused).kind == "untyped"


# ------------------------------------------------------------ shrinking


class _OfAnOperation:
    """A stand-in for a lane: every model with that operation is wrong."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def examine(
        self, key: cases.Key, ways: Sequence[Way], counts: Counter[str], evidence: bool = True
    ) -> list[Finding]:
        del counts, evidence
        case = cases.make(key)
        operations = Counter(node.get_type_name() for node in case.model.get_ordered_ops())
        return (
            [Finding(key, ways[0], "wrong", "output 0", operations=operations)]
            if operations[self._kind]
            else []
        )


def _with(kind: str) -> Finding:
    """Return a large case with that operation."""
    lane = _OfAnOperation(kind)
    keys = (cases.Key("shrink", number) for number in range(2000))
    return next(
        found[0]
        for key in keys
        if (found := lane.examine(key, [PLAIN], Counter())) and sum(found[0].operations.values()) > 12
    )


def test_a_finding_is_made_as_small_as_its_cause(tmp_path: Path) -> None:
    small = shrink(cast(Lane, _OfAnOperation("Softmax")), _with("Softmax"))
    names = [node.get_type_name() for node in cases.make(small.key).model.get_ordered_ops()]
    assert sorted(set(names) - {"Parameter", "Constant"}) == ["Result", "Softmax"]
    save(small, tmp_path / "found")
    assert load(tmp_path / "found") == (small.key, str(PLAIN))
    assert cases.described(cases.make(load(tmp_path / "found")[0])) == cases.described(cases.make(small.key))


def test_a_finding_that_needs_nothing_is_left_as_it_is() -> None:
    finding = replace(_with("Softmax"), kind="client died")
    assert shrink(cast(Lane, _OfAnOperation("nothing")), finding).key == finding.key


def test_the_reference_imports_no_remedy_of_the_product() -> None:
    """A wrong remedy could else excuse itself."""
    for path in Path(__file__).parent.rglob("*.py"):
        imports = [line for line in path.read_text().splitlines() if line.startswith(("from ", "import "))]
        assert not [line for line in imports if "openvino.defects" in line or "arithmetic" in line], path
