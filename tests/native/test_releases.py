"""The table of docs/native.md on properties and releases of OpenVINO; here is the one that is installed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import StartDaemon
from tests.native import release_models
from tests.native.conftest import CPU
from tests.native.releases import PROPERTIES, READ_ALL, ROOT, measured, table

_HEAD = "| property | "


def test_the_installed_release_has_the_outcomes_of_the_document(
    start_daemon: StartDaemon, surroundings: dict[str, str]
) -> None:
    start_daemon()
    release, found = measured(sys.executable, surroundings)
    assert set(found.values()) <= {"yes", "f16", "-"}, found
    columns = documented()
    assert list(columns)[-1] == release, "made with another release: python -m tests.native.releases"
    assert columns[release] == found


def test_no_release_of_the_document_meets_a_refusal_of_the_driver() -> None:
    columns = documented()
    assert list(columns) == sorted(columns)
    assert "2024.6.0" in columns
    assert {outcome for column in columns.values() for outcome in column.values()} == {"yes", "f16", "-"}


SOAK = [pytest.param(name, marks=pytest.mark.soak) for name in ("3720", "5010", "5020")]


@pytest.mark.parametrize("platform", ["4000", *SOAK])
def test_ten_models_are_those_of_the_cpu_device_bit_by_bit(
    start_daemon: StartDaemon, surroundings: dict[str, str], tmp_path: Path, platform: str
) -> None:
    start_daemon(devices=(platform,))
    release_models.write(tmp_path, CPU)
    assert len(list(tmp_path.glob("*.xml"))) == 10
    assert release_models.judged([sys.executable], tmp_path, env=surroundings)[1] == {}
    first = next(iter(release_models.MODELS))
    with np.load(tmp_path / "0.npz") as arrays:
        changed = {name: arrays[name] for name in arrays}
    changed["out0"] = changed["out0"] + 1
    np.savez(tmp_path / "0.npz", **changed)
    assert release_models.judged([sys.executable], tmp_path, env=surroundings)[1] == {first: "other numbers"}


def documented() -> dict[str, dict[str, str]]:
    """Return the columns of the document's table, whose form is that of `table`."""
    text = (ROOT / "docs" / "native.md").read_text()
    start = text.index(_HEAD)
    written = text[start : text.index("\n\n", start) + 1]
    head, _, *rows = (re.split(r" \| ", line.strip("| ")) for line in written.splitlines())
    names = [READ_ALL, *(name for name, _ in PROPERTIES)]
    cells = [dict(zip(names, column, strict=True)) for column in list(zip(*rows, strict=True))[1:]]
    columns = dict(zip(head[1:], cells, strict=True))
    assert table(columns) == written
    return columns
