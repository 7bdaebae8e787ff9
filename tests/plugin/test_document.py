"""`docs/plugin.md` agrees with the code, and `coverage.toml` names existing tests for what it describes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from softnpu.emulator.platforms import PLATFORMS
from softnpu.plugin.properties import PROPERTIES, Access, Level, Property, Use
from softnpu.plugin.properties.hints import DMA_ENGINES, HINTS

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "plugin.md"
COVERAGE = Path(__file__).with_name("coverage.toml")
README = """
    SUPPORTED_PROPERTIES RO SUPPORTED_METRICS RO SUPPORTED_CONFIG_KEYS RO CACHING_PROPERTIES RW
    COMPILATION_NUM_THREADS RW NUM_STREAMS RO OPTIMAL_NUMBER_OF_INFER_REQUESTS RO
    RANGE_FOR_ASYNC_INFER_REQUESTS RO RANGE_FOR_STREAMS RO PERF_COUNT RW PERFORMANCE_HINT RW
    PERFORMANCE_HINT_NUM_REQUESTS RW MODEL_PRIORITY RW ENABLE_CPU_PINNING RW LOG_LEVEL RW CACHE_DIR RW
    AVAILABLE_DEVICES RO DEVICE_ID RW DEVICE_UUID RO DEVICE_ARCHITECTURE RO FULL_DEVICE_NAME RO
    EXCLUSIVE_ASYNC_REQUESTS RW DEVICE_TYPE RO DEVICE_GOPS RO DEVICE_PCI_INFO RO NPU_DEVICE_ALLOC_MEM_SIZE RO
    NPU_DEVICE_TOTAL_MEM_SIZE RO NPU_DRIVER_VERSION RO NPU_COMPILATION_MODE_PARAMS RW NPU_TURBO RW
    NPU_TILES RW NPU_MAX_TILES RW NPU_BYPASS_UMD_CACHING RW NPU_DEFER_WEIGHTS_LOAD RW
""".split()  # noqa: SIM905
"""Names and accesses in the table of the NPU plugin's README, in its order."""

_LEVELS = {Level.CORE: "core", Level.MODEL: "model", Level.BOTH: "core and model"}
_COMPUTED = {
    "CACHING_PROPERTIES": "those that change a model",
    "COMPILATION_NUM_THREADS": "number of cores",
    "NPU_MAX_TILES": "of the device",
    "NPU_STEPPING": "of the device",
}
_INT_MAX = 2**31 - 1


def heading(record: Property) -> str:
    """The names and facts of a property, as documented."""
    names = " or ".join(f"`{name}`" for name in (record.name, *record.aliases))
    access = record.access.value + (", live" if record.live else "")
    facts = [access, _LEVELS[record.level], record.use.value]
    if record.access is Access.RW:
        facts.append(record.kind.allowed.replace(f" to {_INT_MAX}", " on"))
        facts.append(f"default {_COMPUTED.get(record.name) or record.text(record.default) or 'empty'}")
    else:
        facts.append(record.kind.type.__name__)
    return f"{names} ({'; '.join(facts)})"


def test_the_documented_properties_match_the_code() -> None:
    own = dict(zip(README[::2], README[1::2], strict=True))
    order = [*own, *(name for name in PROPERTIES if name not in own)]
    text = " ".join(DOCUMENT.read_text().split())
    begin, end = text.index("### Those of the NPU plugin's README"), text.index(" ### What the hints mean")
    names = r"`[A-Z0-9_]+`(?: or `[A-Z0-9_]+`)*"
    entries = re.findall(rf"- ({names} \([^()]*\)): (.+?\.)(?= - `| #|$)", text[begin:end])
    assert [facts for facts, _ in entries] == [heading(PROPERTIES[name]) for name in order]
    for name, (_, effect) in zip(order, entries, strict=True):
        assert own.get(name) in {None, PROPERTIES[name].access.value}
        if PROPERTIES[name].use is Use.RECORDED:
            assert "no effect" in effect or "as NPU_QDQ_OPTIMIZATION" in effect, name
            assert PROPERTIES[name].access is Access.RW


def test_the_table_of_hints_matches_the_code() -> None:
    rows = re.findall(r"^\| (\d{4}) \|(.*)\|$", DOCUMENT.read_text(), re.MULTILINE)
    table = {platform: [cell.strip() for cell in cells.split("|")] for platform, cells in rows}
    expected = {}
    for platform, hints in HINTS.items():
        tiles = PLATFORMS[platform].tiles
        throughput, latency = hints.throughput, hints.latency
        counts = [f"{DMA_ENGINES}", f"{throughput.requests}", f"{latency.requests}"]
        expected[platform] = [f"{throughput.tiles} of {tiles}", f"{latency.tiles} of {tiles}", *counts]
    assert table == expected


def test_every_property_and_feature_names_tests_that_exist() -> None:
    coverage = tomllib.loads(COVERAGE.read_text())
    assert coverage["properties"].keys() == PROPERTIES.keys()
    missing = []
    for section in coverage.values():
        for tests in section.values():
            for test in [tests] if isinstance(tests, str) else tests:
                file, _, name = test.partition("::")
                path = ROOT / file if file.startswith("tests/") else Path(__file__).parent / file
                if not path.exists() or (name and f"def {name}(" not in path.read_text()):
                    missing.append(test)
    assert missing == []


def test_the_document_is_for_users() -> None:
    text = DOCUMENT.read_text()
    assert re.findall(r"\btest_\w+", text) == []
    assert [line for line in text.splitlines() if len(line) >= 120] == []
