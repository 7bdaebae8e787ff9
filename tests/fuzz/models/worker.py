"""A process that runs cases and may crash: `python -m tests.fuzz.models.worker KIND FD PARENT`.

FD is its only connection: it receives a `Job`, and returns an `Answer`.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from softnpu.emulator.common import linux
from tests.fuzz.models import case as cases
from tests.fuzz.models.records import Answer, Job, Refusal

KINDS = {
    "cpu": "tests.fuzz.models.reference",
    "plugin": "tests.fuzz.models.plugin_ways",
    "native": "tests.fuzz.models.native_ways",
}


def main(arguments: list[str]) -> int:
    """Serve until the other end closes."""
    kind, fd, parent = arguments
    linux.die_with_parent(int(parent))
    run = importlib.import_module(KINDS[kind]).run
    with Connection(int(fd)) as connection:
        while True:
            try:
                job: Job = connection.recv()
            except EOFError:
                return 0
            connection.send(_answer(run, job))


def _answer(run: object, job: Job) -> Answer:
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        case = cases.make(job.key)
    except Exception as error:  # noqa: BLE001 - a mistake of the fuzzer's own, told as such
        return Answer(Refusal("make", type(error).__name__, str(error), typed=False))
    try:
        answer: Answer = run(case, job)  # type: ignore[operator]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return answer


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
