"""What the real NPU compiler takes, as tables, from its source.

    python -m softnpu.tools.generators.importer ROOT CHECKOUT COMMIT DATE

reads a checkout of openvinotoolkit/npu_compiler and writes two files into the repository at ROOT:
`importer.toml` (the operations that the importer takes by version, the passes before it, its element types,
and what else its parsers check) and `dialect.toml` (the compiler's own words). Only names are taken.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = "openvinotoolkit/npu_compiler"
IMPORTER: Final = "src/vpux_compiler/src/frontend/IE.cpp"
DIALECT: Final = "src/vpux_compiler/tblgen/vpux/compiler/dialect/IE/ops"
TABLE: Final = "emulator/prediction/support/importer.toml"
WORDS: Final = "emulator/arithmetic/dialect.toml"

_BECOME: Final[Mapping[str, tuple[str, ...]]] = {
    # canonicalised or converted before the precision is chosen (buildInitialTransformationsPipeline)
    "ConvolutionBackpropData": ("TransposedConvolution",),
    "GroupConvolutionBackpropData": ("GroupTransposedConvolution",),
    "MatMul": ("FullyConnected",),
    "PRelu": ("LeakyRelu",),
    # split by passes of OpenVINO before the import
    "BatchNormInference": ("Add", "Multiply"),
    "Einsum": ("FullyConnected", "MatMul"),
}
"""Further operations of the dialect that one of OpenVINO becomes."""

_ENTRY: Final = re.compile(r"(?:MAP_ENTRY\(|\{)\s*(ov::[\w:]+?)(?:\)|::get_type_info_static)")
_PASS: Final = re.compile(r"(?:register_pass|add_matcher)<ov::pass::(\w+)>")
_OMITTED: Final = re.compile(r"disable<ov::pass::(\w+)>")
_TYPE: Final = re.compile(r"case ov::element::Type_t::(\w+):")
_PARSER: Final = re.compile(r"NGraphImporter::parseNode\(.*?const std::shared_ptr<(ov::[\w:]+)>&", re.DOTALL)
_CHECK: Final = re.compile(
    r"VPUX_THROW_(?:UNLESS|WHEN)\((.*?),\s*\"|if \(([^{};]*)\)\s*\{\s*VPUX_THROW\(", re.DOTALL
)
_LOCAL: Final = re.compile(r"\bauto\s*[&*]?\s*(\w+)\s*=([^;]*);|\bSmallVector<\w+>\s+(\w+)\(([^;]*)\);")
_GETTER: Final = re.compile(r"origNode->get_(\w+)\(")
_PARSED: Final = re.compile(r"\b(?:\w+::)*((?:get|parse)[A-Z]\w*)\(")
_CONSTANT: Final = re.compile(r"Constant.*?input_value\((\d+)\)|inputs\[(\d+)\]\s*\.getDefiningOp", re.DOTALL)
_CREATED: Final = re.compile(r"create<IE::(\w+)>")
_DEFINED: Final = re.compile(r"def IE_(\w+)\s*:\s*IE_\w*Op\s*<\s*\"(\w+)\"")
_NAMESPACE: Final = re.compile(r"namespace v(\d+)\b|OPENVINO_OP\(\"(\w+)\",\s*\"(\w+)\"")
_REGISTERED: Final = re.compile(r"_OPENVINO_OP_REG\((\w+), ov::op::v(\d+)\)")
_NOT_CHECKED: Final = frozenset({"friendly_name", "type_name"})


@dataclass(frozen=True)
class Versions:
    """OpenVINO's operations: the version in a model for each C++ class, from its headers."""

    classes: Mapping[tuple[str, str], str]
    opsets: Mapping[tuple[str, str], str]

    @classmethod
    def read(cls, include: Path) -> Versions:
        """Read the headers of an installed OpenVINO, in the folder `include/openvino`."""
        classes = {}
        for header in sorted((include / "op").glob("*.hpp")):
            space = ""
            for number, name, version in _NAMESPACE.findall(header.read_text(encoding="utf-8")):
                space = number or space
                if name:
                    classes[space, name] = version
        opsets = {}
        for table in (include / "opsets").glob("opset*_tbl.hpp"):
            number = table.name.removeprefix("opset").removesuffix("_tbl.hpp")
            for name, space in _REGISTERED.findall(table.read_text(encoding="utf-8")):
                opsets[number, name] = space
        return cls(classes, opsets)

    def of(self, named: str) -> tuple[str, str] | None:
        """Return type and version of `ov::opset4::MVN` or `ov::op::v13::FakeConvert`; None for others."""
        *_, space, name = named.split("::")
        if space == "internal":
            return name, "ie_internal_opset"
        number = re.fullmatch(r"(opset|v)(\d+)", space)
        if number is None:
            return None
        kind, digits = number.groups()
        version = self.opsets.get((digits, name), digits) if kind == "opset" else digits
        return name, self.classes.get((version, name), f"opset{max(1, int(version))}")


def table(text: str, versions: Versions) -> dict[str, dict[str, list[str]]]:
    """Return the sections of `importer.toml` from the text of the importer."""
    begin = text.index("dispatchMap{")
    entries = _ENTRY.findall(text[begin : text.index("};", begin)])
    parsed: dict[str, list[str]] = {}
    for name, version in filter(None, map(versions.of, entries)):
        parsed.setdefault(name, []).append(version)
    checked = {}
    for named, body in _parsers(text):
        found = versions.of(named)
        words = _checks(body)
        if found and words:
            checked[" ".join(found)] = words
    return {
        "parsed": {name: sorted(parsed[name], key=_number) for name in sorted(parsed)},
        "checked": dict(sorted(checked.items())),
        "before": {
            "passes": sorted(set(_PASS.findall(text))),
            "omitted": sorted(set(_OMITTED.findall(text))),
        },
        "types": {"imported": sorted(set(_TYPE.findall(text)))},
    }


def words(text: str, definitions: Iterable[str], versions: Versions) -> dict[str, dict[str, list[str]]]:
    """Return the sections of `dialect.toml`: its operations, and those for types with another name."""
    names = {
        each: each.removesuffix("Op") for each in _CREATED.findall(text)
    }  # as far as they are not defined
    names |= {name: word for each in definitions for name, word in _DEFINED.findall(each)}
    found: dict[str, set[str]] = {}
    for named, body in _parsers(text):
        kind = versions.of(named)
        made = {names[each] for each in _CREATED.findall(body) if "Dynamic" not in each}
        if kind:
            found.setdefault(kind[0], set()).update(made - {"Convert"} or made)
    for kind_, more in _BECOME.items():
        found[kind_] = {*found.get(kind_, ()), *more}
    others = {kind_: sorted(found[kind_]) for kind_ in sorted(found) if found[kind_] not in ({kind_}, set())}
    return {"dialect": {"names": sorted(set(names.values()))}, "words": others}


def _parsers(text: str) -> Iterator[tuple[str, str]]:
    """Yield the class and the body of each parser."""
    matches = list(_PARSER.finditer(text))
    ends = [each.start() for each in matches[1:]] + [len(text)]
    for match, end in zip(matches, ends, strict=True):
        yield match.group(1), text[match.end() : end]


def _checks(body: str) -> list[str]:
    """Return the attributes, `input N` and helpers on which the conditions of a parser depend."""
    known: dict[str, set[str]] = {}
    for name, value, other_name, other in _LOCAL.findall(body):
        known[name or other_name] = _words(value or other, known)
    found = {word for one, other in _CHECK.findall(body) for word in _words(one or other, known)}
    return sorted(found - _NOT_CHECKED)


def _words(expression: str, known: Mapping[str, set[str]]) -> set[str]:
    found = set(_GETTER.findall(expression)) | set(_PARSED.findall(expression)) - {
        "getInputs",
        "getDefiningOp",
    }
    found |= {f"input {one or other}" for one, other in _CONSTANT.findall(expression)}
    for name in re.findall(r"\b\w+\b", expression):
        found |= known.get(name, set())
    return found - {"getShape", "getContent", "getRank", "getType", "getElementType"}


def _number(version: str) -> int:
    return int(version.removeprefix("opset")) if version.removeprefix("opset").isdecimal() else 0


def encode(path: str, commit: str, date: str, sections: Mapping[str, Mapping[str, list[str]]]) -> str:
    """Return a table as TOML, with its source."""
    lines = [
        "# Made by softnpu.tools.generators.importer from the compiler's source: do not edit.",
        "",
        "[source]",
        f'repository = "{REPOSITORY}"',
        f'path = "{path}"',
        f'version = "commit {commit[:12]}"',
        f'date = "{date}"',
    ]
    for section, values in sections.items():
        lines += ["", f"[{section}]"]
        for name, listed in values.items():
            key = name if re.fullmatch(r"\w+", name) else f'"{name}"'
            lines += _listed(key, [f'"{each}"' for each in listed])
    return "\n".join(lines) + "\n"


def _listed(key: str, values: list[str]) -> Iterator[str]:
    line = f"{key} = [{', '.join(values)}]"
    if len(line) <= 110:
        yield line
        return
    yield f"{key} = ["
    line = "   "
    for value in values:
        if len(line) + len(value) > 108:
            yield line
            line = "   "
        line += f" {value},"
    yield from (line, "]")


def main(root: Path, checkout: Path, commit: str, date: str) -> None:
    """Write both tables."""
    import openvino

    versions = Versions.read(Path(openvino.__file__).parent / "include/openvino")
    text = (checkout / IMPORTER).read_text(encoding="utf-8")
    definitions = [each.read_text(encoding="utf-8") for each in sorted((checkout / DIALECT).glob("*.td"))]
    (root / TABLE).write_text(encode(IMPORTER, commit, date, table(text, versions)), encoding="utf-8")
    found = words(text, definitions, versions)
    (root / WORDS).write_text(encode(DIALECT, commit, date, found), encoding="utf-8")


if __name__ == "__main__":
    root_, checkout_, commit_, date_ = sys.argv[1:]
    main(Path(root_), Path(checkout_), commit_, date_)
