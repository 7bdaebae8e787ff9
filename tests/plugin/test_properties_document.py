"""`docs/plugin.md` and the records of the properties say the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from softnpu.emulator.platforms import PLATFORMS
from softnpu.plugin.properties import PROPERTIES, Access, Level, Property
from softnpu.plugin.properties.hints import HINTS

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "plugin.md"

README = {
    "SUPPORTED_PROPERTIES": "RO",
    "SUPPORTED_METRICS": "RO",
    "SUPPORTED_CONFIG_KEYS": "RO",
    "CACHING_PROPERTIES": "RW",
    "COMPILATION_NUM_THREADS": "RW",
    "NUM_STREAMS": "RO",
    "OPTIMAL_NUMBER_OF_INFER_REQUESTS": "RO",
    "RANGE_FOR_ASYNC_INFER_REQUESTS": "RO",
    "RANGE_FOR_STREAMS": "RO",
    "PERF_COUNT": "RW",
    "PERFORMANCE_HINT": "RW",
    "PERFORMANCE_HINT_NUM_REQUESTS": "RW",
    "MODEL_PRIORITY": "RW",
    "ENABLE_CPU_PINNING": "RW",
    "LOG_LEVEL": "RW",
    "CACHE_DIR": "RW",
    "AVAILABLE_DEVICES": "RO",
    "DEVICE_ID": "RW",
    "DEVICE_UUID": "RO",
    "DEVICE_ARCHITECTURE": "RO",
    "FULL_DEVICE_NAME": "RO",
    "EXCLUSIVE_ASYNC_REQUESTS": "RW",
    "DEVICE_TYPE": "RO",
    "DEVICE_GOPS": "RO",
    "DEVICE_PCI_INFO": "RO",
    "NPU_DEVICE_ALLOC_MEM_SIZE": "RO",
    "NPU_DEVICE_TOTAL_MEM_SIZE": "RO",
    "NPU_DRIVER_VERSION": "RO",
    "NPU_COMPILATION_MODE_PARAMS": "RW",
    "NPU_TURBO": "RW",
    "NPU_TILES": "RW",
    "NPU_MAX_TILES": "RW",
    "NPU_BYPASS_UMD_CACHING": "RW",
    "NPU_DEFER_WEIGHTS_LOAD": "RW",
}
"""The table of the NPU plugin's README, in its order: name and access."""

_LEVELS = {Level.CORE: "core", Level.MODEL: "model", Level.BOTH: "both"}
_COMPUTED = {
    "CACHING_PROPERTIES": "those that change a model",
    "COMPILATION_NUM_THREADS": "number of cores",
    "NPU_MAX_TILES": "of the device",
    "NPU_STEPPING": "of the device",
}
_INT_MAX = 2**31 - 1


def row_of(record: Property) -> list[str]:
    """The cells of a property in the document, but for the last, which names a test."""
    names = " or ".join(f"`{name}`" for name in (record.name, *record.aliases))
    writable = record.access is Access.RW
    cells = [
        names,
        record.access.value + (", live" if record.live else ""),
        _LEVELS[record.level],
        _default(record) if writable else "",
        record.kind.allowed.replace(f" to {_INT_MAX}", " on") if writable else record.kind.type.__name__,
        record.use.value,
        record.doc,
    ]
    return [cell.replace("|", r"\|") for cell in cells]


def _default(record: Property) -> str:
    return _COMPUTED.get(record.name) or record.text(record.default) or "empty"


def _rows() -> dict[str, list[str]]:
    """The rows of both tables of properties, by the name of the property."""
    part = DOCUMENT.read_text().partition("\n## Properties")[2].partition("\n## ")[0]
    rows = {}
    for line in part.splitlines():
        if line.startswith("| `") and len(cells := re.split(r"(?<!\\)\|", line)) == 10:
            stripped = [cell.strip() for cell in cells[1:-1]]
            name = stripped[0].split("`")[1]
            assert name not in rows, f"{name} twice"
            rows[name] = stripped
    return rows


def test_every_row_of_the_readme_is_a_property_with_the_same_access() -> None:
    found = {name: PROPERTIES[name].access.value for name in README}
    assert found == README


def test_every_property_has_its_row_and_every_row_its_property() -> None:
    assert _rows().keys() == PROPERTIES.keys()
    assert [name for name in _rows() if name in README] == list(README)


@pytest.mark.parametrize("name", PROPERTIES)
def test_the_row_says_what_the_record_says(name: str) -> None:
    assert _rows()[name][:-1] == row_of(PROPERTIES[name])


@pytest.mark.parametrize("name", PROPERTIES)
def test_the_test_that_is_to_show_a_property_exists(name: str) -> None:
    shown = re.findall(r"`([\w.]+)::(\w+)`", _rows()[name][-1])
    assert shown, "no test is named"
    for file, test in shown:
        tree = ast.parse((Path(__file__).parent / file).read_text())
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_table_of_the_hints_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| (\d{4}) \|(.*)\|$", DOCUMENT.read_text(), re.MULTILINE)
    found = {platform: [cell.strip() for cell in cells.split("|")] for platform, cells in rows}
    expected = {}
    for platform, hints in HINTS.items():
        tiles = PLATFORMS[platform].tiles
        assert hints.throughput.dma_engines == hints.latency.dma_engines
        expected[platform] = [
            f"{hints.throughput.tiles} of {tiles}",
            f"{hints.latency.tiles} of {tiles}",
            f"{hints.latency.dma_engines}",
            f"{hints.throughput.requests}",
            f"{hints.latency.requests}",
        ]
    assert found == expected
