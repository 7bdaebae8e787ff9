"""`docs/plugin.md` and Intel's README agree with the code; `coverage.toml` names a test of each property."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from softnpu.emulator.platforms import PLATFORMS
from softnpu.plugin.properties import PROPERTIES, Access, Use
from softnpu.plugin.properties.effects import EFFECTS
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


def test_properties_have_the_access_of_intel_s_readme() -> None:
    for name, access in zip(README[::2], README[1::2], strict=True):
        assert PROPERTIES[name].access.value == access, name


def test_every_property_has_its_effect_and_one_without_says_so() -> None:
    assert EFFECTS.keys() == PROPERTIES.keys()
    for record in PROPERTIES.values():
        if record.use is Use.RECORDED:
            assert "no effect" in EFFECTS[record.name] or "as NPU_QDQ_OPTIMIZATION" in EFFECTS[record.name]
            assert record.access is Access.RW


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


def test_every_property_names_tests_that_exist() -> None:
    tests_of = tomllib.loads(COVERAGE.read_text())["properties"]
    assert tests_of.keys() == PROPERTIES.keys()
    missing = []
    for tests in tests_of.values():
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
