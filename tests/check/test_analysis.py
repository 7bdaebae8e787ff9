"""The analysis finds exactly what is unordered, in random runs; outputs and suppressions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from softnpu.emulator.interface import check_notes as notes
from softnpu.emulator.interface.check_notes import Access, Command, NoteFile
from softnpu.tools.check import analysis, output
from softnpu.tools.check.findings import Finding, Findings, Kind, Place
from softnpu.tools.check.notebook import Notebook
from softnpu.tools.shared.failures import ToolError
from tests.check.random_runs import Run, found_pairs


def check_run(seed: int, folder: Path) -> None:
    folder.mkdir()
    file = NoteFile(folder, "run")
    run = Run(seed, file)
    file.close()
    assert found_pairs(folder, "race") == run.races, f"seed {seed}"
    assert found_pairs(folder, "list-order") == run.lists, f"seed {seed}"
    assert found_pairs(folder, "lost-wake-up") == run.lost, f"seed {seed}"
    shutil.rmtree(folder)


def test_random_runs_have_no_miss_and_no_invention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "_PRUNE_AT", 4)
    for seed in range(200):
        check_run(seed, tmp_path / str(seed))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_hundred_thousand_random_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "_PRUNE_AT", 16)
    for seed in range(1000, 101_000):
        check_run(seed, tmp_path / str(seed))


def test_what_no_engine_has_noted_is_told(tmp_path: Path) -> None:
    file = NoteFile(tmp_path, "client")
    file.write(notes.Submitted(t=1, session=1, queue=2, first=1, recordings=((3, 4),) * 4, site=0))
    file.write(notes.Completed(t=2, session=1, queue=2, sequence=1))
    file.write(notes.Cancelled(t=3, session=1, queue=2, sequence=3))
    file.write(notes.Failed(t=4, session=1, queue=2, sequence=4))
    file.close()
    unseen = analysis.analyse(tmp_path).unseen
    assert unseen == ["submissions of which no engine has noted a command: 2"]


def test_barriers_alone_need_no_engine(tmp_path: Path) -> None:
    file = NoteFile(tmp_path, "client")
    calls = (("zeCommandListAppendBarrier", 0),)
    file.write(notes.Recorded(t=1, session=1, list=3, recording=4, calls=calls))
    file.write(notes.Submitted(t=2, session=1, queue=2, first=1, recordings=((3, 4),), site=0))
    file.write(notes.Completed(t=3, session=1, queue=2, sequence=1))
    file.close()
    assert not analysis.analyse(tmp_path).unseen


def run_in_queue(file: NoteFile, *commands: Command) -> None:
    """Note a list of these commands at one place, submitted and begun."""
    file.write(notes.Site(site=1, t=0, frames=("app.py:1 loop",)))
    file.write(notes.Made(t=1, session=1, kind="list", id=3, site=1))
    calls = (("zeCommandListAppendMemoryFill", 1),) * len(commands)
    file.write(notes.Recorded(t=2, session=1, list=3, recording=4, calls=calls))
    file.write(notes.Submitted(t=3, session=1, queue=2, first=1, recordings=((3, 4),), site=1))
    file.write(notes.Program(t=4, program=1, commands=commands, digest=""))
    file.write(notes.Turn(t=5, session=1, queue=2, sequence=1, program=1, first=0))


def test_a_list_is_over_once_its_last_event_is_seen(tmp_path: Path) -> None:
    file = NoteFile(tmp_path, "run")
    at = Access(9, 0, "f", 0, 8)
    run_in_queue(file, Command("EventSignal", 0, event=at))
    file.write(notes.Signalled(t=6, file="f", start=0))
    file.write(notes.HostEvent(t=7, session=1, id=5, memory=9, offset=0, what="seen", site=1))
    file.write(notes.Ended(t=8, session=1, kind="list", id=3, site=1))
    file.write(notes.TurnEnd(t=9, last=1, done=True))  # the program was faster than the engine
    file.close()
    assert not analysis.analyse(tmp_path).found


def test_a_loop_that_appends_is_one_cause(tmp_path: Path) -> None:
    file = NoteFile(tmp_path, "run")
    fills = [Command("Fill", step, writes=(Access(9, step, "f", step, step + 2),)) for step in range(12)]
    run_in_queue(file, *fills)
    file.write(notes.TurnEnd(t=9, last=12, done=True))
    file.close()
    (finding,) = analysis.analyse(tmp_path).found.values()
    assert (finding.kind, finding.count) == (Kind.LIST_ORDER, 11)


def test_frames_of_a_program_that_was_called_by_a_relative_name(tmp_path: Path) -> None:
    file = NoteFile(tmp_path, "client")
    file.write(notes.Session(t=1, session=1, pid=2, program="app", file="/opt/app"))
    file.write(notes.Site(t=2, site=1, frames=("./app+0x10 f", "./other.so+0x20 g")))
    file.close()
    book = Notebook(tmp_path, names=False)
    assert book.frames(next(tmp_path.iterdir()).name, 1) == ("/opt/app+0x10 f", "./other.so+0x20 g")


def test_only_a_neighbour_that_lives_is_told(tmp_path: Path) -> None:
    file = NoteFile(tmp_path, "client")
    file.write(notes.Made(t=1, session=1, kind="context", id=1, site=0))
    for number in range(2):
        made = notes.Made(
            t=2, session=1, kind="memory", id=number, site=0, size=64, address=64 * number + 1, parent=number
        )
        file.write(made)
    for t in (3, 5):
        passed = notes.OutOfBounds(
            t=t, session=1, memory=0, offset=0, end=128, size=64, write=True, call="copy", site=0
        )
        file.write(passed)
    file.write(notes.Ended(t=4, session=1, kind="context", id=1, site=0))
    file.close()
    found = analysis.analyse(tmp_path).found.values()
    told = [[place.what for place in finding.places[2:]] for finding in found]
    assert told == [["the allocation that it reaches, made"], []]


def some_findings(folder: Path) -> Findings:
    findings = Findings(submissions=3)
    frames = (f"{folder}/app.py:12 write", f"{folder}/app.py:40 main")
    places = (
        Place("zeCommandListAppendMemoryFill writes", "app.py (17)", frames),
        Place("made", "app.py (17)"),
    )
    for _ in range(2):
        findings.add(Finding(Kind.RACE, "two queues", places, "wait in between"))
    return findings


def test_files_have_each_cause_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    findings = some_findings(tmp_path)
    output.write_json(tmp_path / "found.json", findings)
    (entry,) = json.loads((tmp_path / "found.json").read_text())["findings"]
    assert (entry["kind"], entry["count"]) == ("race", 2)
    output.write_sarif(tmp_path / "found.sarif", findings)
    (run,) = json.loads((tmp_path / "found.sarif").read_text())["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["race"]
    (result,) = run["results"]
    physical = result["locations"][0]["physicalLocation"]
    assert (physical["artifactLocation"]["uri"], physical["region"]["startLine"]) == ("app.py", 12)
    assert result["occurrenceCount"] == 2


def test_paths_are_relative_below_the_working_directory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = Path(f"/elsewhere{tmp_path}")
    findings = some_findings(tmp_path)
    findings.add(
        Finding(Kind.RACE, "elsewhere", (Place("made", "app.py (17)", (f"{inner}/b.py:1 f",)),), "x")
    )
    monkeypatch.chdir(tmp_path)
    output.show(findings, 0)
    shown = capsys.readouterr().err
    assert f"      {inner}/b.py:1 f\n" in shown
    assert "      app.py:12 write\n" in shown


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("race */app.py:* write", 0),
        ("* */app.py:40 *", 0),
        ("race */other.py:*  # not this one", 1),
        ("list-order */app.py:*", 1),
        ("# nothing", 1),
    ],
)
def test_suppressions_match_frames(line: str, left: int, tmp_path: Path) -> None:
    file = tmp_path / "suppressions"
    file.write_text(line + "\n")
    findings = some_findings(tmp_path)
    assert output.suppress(findings, output.read_suppressions(file)) == 1 - left
    assert len(findings.found) == left


def test_a_wrong_suppression_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "suppressions"
    file.write_text("# races\nraces *\n")
    with pytest.raises(ToolError, match=r"line 2.*'races \*'.*race, host-access-in-flight"):
        output.read_suppressions(file)
