"""`softnpu bench load`: every kind of start is what its name says, with all its parts."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from softnpu.tools.bench import load
from softnpu.tools.bench.load import Way
from softnpu.tools.bench.load_client import Start, Started
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.shared.failures import ToolError

_LOADED = ("driver cache, loaded by another process", "import, loaded by another process")
_TARGETS = dict(
    zip(
        ("cold", "driver cache", "CACHE_DIR", "import", *_LOADED), (1.3, 1.0, 1.2, 1.2, 0.6, 0.7), strict=True
    )
)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_every_start_has_its_parts_and_a_peer(digits: Path) -> None:
    found = {row.metric: row for row in load.run(BenchModel("digits", digits, {}), 1)}
    for start, target in _TARGETS.items():
        total = found[f"digits, {start}: {'FEIL' if start == 'cold' else 'FIL'}"]
        parts = [found[f"digits, {start}: {part}"] for part in ("compile", "load", "first inference")]
        assert total.peer == parts[0].peer == parts[2].peer == "OpenVINO CPU"
        assert total.unit == "ms"
        assert total.peer_value is not None
        assert total.peer_value > 0
        assert sum(part.value for part in parts) == pytest.approx(total.value, rel=0.02)
        assert min(part.value for part in parts if start not in _LOADED or part is not parts[1]) > 0
        assert total.target == target
    same = found["digits: outputs that differ"]
    assert (same.value, same.ok) == (0, True)
    assert len(found) == 4 * len(_TARGETS) + 1


@pytest.fixture
def starts(digits: Path, private_dir: Path) -> load._Starts:
    return load._Starts(BenchModel("digits", digits, {}), private_dir)


def _started(outputs: str = "", cached: bool = False) -> Started:
    return Started(compile_s=1, load_s=1, first_s=1, cached=cached, outputs=outputs)


def test_unexpected_and_missing_caches_are_noticed(
    starts: load._Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "private_daemon", lambda: nullcontext(SimpleNamespace(socket="none")))
    monkeypatch.setattr(load, "wait_for_rest", lambda _: None)
    monkeypatch.setattr(load, "_run", lambda _: _started(cached=True))
    assert starts.on_npu(Way.DRIVER_CACHE).cached
    with pytest.raises(ToolError, match="start 'cold': the model came from a cache"):
        starts.on_npu(Way.COLD)
    monkeypatch.setattr(load, "_run", lambda _: _started())
    with pytest.raises(ToolError, match="start 'driver cache': the model was compiled again; expected"):
        starts.on_npu(Way.DRIVER_CACHE)


def test_cold_starts_find_an_empty_directory_each_time(starts: load._Starts) -> None:
    seen = {starts._cache("npu", Way.COLD) for _ in range(3)}
    assert len(seen) == 3
    assert starts._cache("npu", Way.CACHE_DIR) == starts._cache("npu", Way.CACHE_DIR)
    assert starts._cache("npu", Way.DRIVER_CACHE) not in {*seen, starts._cache("npu", Way.CACHE_DIR)}


def test_differing_outputs_are_noticed(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load._Starts, "prepare", lambda *_: None)
    monkeypatch.setattr(load._Starts, "on_npu", lambda _, way: _started("other" if way is Way.IMPORT else ""))
    monkeypatch.setattr(load._Starts, "on_cpu", lambda *_: _started())
    row = list(load.run(BenchModel("digits", digits, {}), 2))[-1]
    assert (row.value, row.ok) == (1, False)


def test_a_failing_start_says_why(starts: load._Starts, private_dir: Path) -> None:
    with pytest.raises(ToolError, match=r"start 'import' on the npu: .*npu\.blob"):
        starts.on_npu(Way.IMPORT)
    model = str(private_dir / "nothing.xml")
    start = Start(name="start 'cold' on the cpu", side="cpu", model=model)
    with pytest.raises(ToolError, match=r"start 'cold' on the cpu: .*nothing\.xml"):
        load._run(start)
