"""`softnpu stress` on a device that computes wrong numbers: the report explains them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from softnpu.tools.stress.failure_report import Report
from softnpu.tools.stress.reports import Failure
from softnpu.tools.stress.result import StressResult
from tests.support.cli import softnpu
from tests.support.seeded import seeded_engine


class _Run:
    """A short run on an engine with a defect: its output, and the first report on an output."""

    def __init__(self, folder: Path, defect: str, model: str) -> None:
        for seconds in ("3", "30"):  # a busy machine does next to nothing in the first few
            told = softnpu(
                "stress", "--clients", "2", "--seconds", seconds, "--seed", "1", "--model", model, "--json",
                TMPDIR=str(folder), **seeded_engine(folder, defect),
            )  # fmt: skip
            if told.code:
                break
        assert told.code == 1, told.out + told.err
        self.out = told.err
        result = msgspec.json.decode(told.out, type=StressResult)
        failures = [failure for failure in result.failures if failure.kind == "wrong"]
        assert failures, result.failures
        self.failure: Failure = failures[0]
        self.report = msgspec.json.decode(Path(self.failure.report).read_bytes(), type=Report)


def test_a_skipped_inference(private_dir: Path) -> None:
    run = _Run(private_dir, "skipped", "convolutions")
    report, (output,) = run.report, run.report.outputs
    assert (output.written, output.wrong, output.equals) == ("untouched", output.numbers, [])
    assert report.later.startswith("still the same")
    # it was counted as ended, and its fence says so
    assert report.submission is not None
    assert report.fence is not None
    assert report.fence.signalled == report.fence.ticket == report.submission.ticket
    queue = next(queue for queue in report.queues_later if queue.handle == report.submission.queue)
    assert queue.completed >= report.submission.sequence
    # the context
    assert (report.seed, report.model, report.client) == (1, "convolutions", run.failure.client)
    assert report.engines[0].engine_pid > 0
    assert report.steps[-1].number == report.step == run.failure.step
    assert report.steps[-1].ended_ns == 0
    assert report.submission in report.submissions
    assert report.run is not None
    assert [neighbour.client for neighbour in report.run.neighbours] == [1 - report.client]
    # the text
    assert "nothing was written" in run.out
    assert f"submission {report.submission.sequence}, ticket {report.submission.ticket}" in run.out
    assert f"report: {run.failure.report}" in run.out


def test_a_fence_signalled_before_its_inference_ran(private_dir: Path) -> None:
    run = _Run(private_dir, "early", "convolutions")
    report = run.report
    assert report.outputs[0].written == "untouched"
    assert report.later.startswith("right ")
    assert report.submission is not None
    at_once, later = (
        next(queue for queue in queues if report.submission and queue.handle == report.submission.queue)
        for queues in (report.queues, report.queues_later)
    )
    assert at_once.completed < report.submission.sequence
    assert later.completed >= at_once.completed
    assert "its end was told too early" in run.out


def test_the_result_of_the_previous_sample(private_dir: Path) -> None:
    run = _Run(private_dir, "stale", "perceptron")
    report, (output,) = run.report, run.report.outputs
    assert output.written == "fully"
    assert output.equals[0].share == 1.0
    assert output.equals[0].model == "perceptron"
    earlier = [
        note.sample for note in report.submissions if note.checked_ns and note is not report.submission
    ]
    assert output.equals[0].sample in earlier
    assert output.equals[0].sample != report.sample
    assert f"equals output 0 of 'perceptron', sample {output.equals[0].sample}" in run.out


def test_a_partly_written_output(private_dir: Path) -> None:
    run = _Run(private_dir, "half", "attention")
    (output,) = run.report.outputs
    size = output.numbers * 4
    assert output.written == "partly"
    assert output.unwritten == [(size // 2, size)]
    assert output.wrong == output.numbers // 2
    assert f"{size // 2} bytes were not written, the first at byte {size // 2}" in run.out
