"""A graph for another platform: compiled and exported, but never loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from softnpu.driver import Context, GraphSource, ZeResult
from softnpu.driver.graph_creation import compile_source, import_blob
from softnpu.emulator.blob.container import BlobReader
from tests.support.work import failure


@pytest.mark.parametrize("given", ["config", "build flags"])
def test_a_graph_for_another_platform_is_not_loaded(context: Context, digits: Path, given: str) -> None:
    config = {"NPU_PLATFORM": "3720"} if given == "config" else {}
    flags = "" if config else '--config NPU_PLATFORM="3720"'
    with GraphSource.from_ir(digits) as source:
        graph = compile_source(context, source, config=config, build_flags=flags)
    assert graph.meta.platform == "3720"
    for _ in range(2):
        error = failure(graph.initialize, ZeResult.ERROR_UNSUPPORTED_FEATURE)
        assert "compiled for 3720" in str(error)
    assert graph.load_ms == 0
    assert BlobReader(graph.get_native_binary()).metadata().platform == "3720"
    failure(lambda: import_blob(context, graph.get_native_binary()), ZeResult.ERROR_INVALID_NATIVE_BINARY)


def test_the_platform_of_the_device_by_any_name_is_loaded(context: Context, digits: Path) -> None:
    for name in ("4000", "NPU4000", "AUTO_DETECT"):
        with GraphSource.from_ir(digits) as source:
            graph = context.create_graph(source, {"NPU_PLATFORM": name})
        graph.initialize()
        assert graph.meta.platform == "4000"
