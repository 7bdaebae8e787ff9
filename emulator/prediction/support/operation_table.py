"""The NPU compiler's treatment of operations, from `importer.toml` and `operations.toml`."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from softnpu.emulator.prediction.support.findings import Source


@dataclass(frozen=True, slots=True)
class OperationTable:
    """The files' content: versions by type, passes by type and version, results by type and version.

    `checked` are the attributes, `input N` and helpers that a parser checks, by `TYPE VERSION`; `passes` the
    passes before the import; `types` the element types.
    """

    parsed: Mapping[str, frozenset[str]]
    converted: Mapping[str, Mapping[str, str]]
    absent: frozenset[str]
    conformance: Mapping[str, tuple[int, int]]
    checked: Mapping[str, tuple[str, ...]]
    passes: frozenset[str]
    types: frozenset[str]
    source: Source

    def knows(self, type: str) -> bool:
        """Return whether any version of this type is parsed or converted."""
        return type in self.parsed or type in self.converted

    def is_parsed(self, type: str, opset: str) -> bool:
        """Return whether the importer has this version."""
        return opset in self.parsed.get(type, ())

    def conversion(self, type: str, opset: str) -> str:
        """Return the pass that replaces this version by a parsed one; empty if there is none."""
        return self.converted.get(type, {}).get(opset, "")

    def results(self, type: str, opset: str) -> tuple[int, int]:
        """Return tests passed and tests run on an NPU; zeros if the report has none."""
        return self.conformance.get(f"{type} {opset}", (0, 0))


@functools.cache
def operation_table() -> OperationTable:
    """Read the files, once."""
    importer, content = _read("importer.toml"), _read("operations.toml")
    return OperationTable(
        parsed={kind: frozenset(versions) for kind, versions in importer["parsed"].items()},
        converted=content["converted"],
        absent=frozenset(content["absent"]["types"]),
        conformance={name: (passed, run) for name, (passed, run) in content["conformance"].items()},
        checked={name: tuple(words) for name, words in importer["checked"].items()},
        passes=frozenset(importer["before"]["passes"]),
        types=frozenset(importer["types"]["imported"]),
        source=Source(**importer["source"]),
    )


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))
