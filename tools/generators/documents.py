"""`python -m softnpu.tools.generators.documents ROOT` writes the documents that are made from the code."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer
from typer.cli import get_docs_for_click

from softnpu.plugin.properties.effects import EFFECTS
from softnpu.plugin.properties.kinds import INT_MAX
from softnpu.tools.shared.groups import DeferredGroup

_PACKAGES: Final = ("driver", "emulator", "plugin", "tools")
_VARIABLE: Final = re.compile(r"(SOFTNPU|ZE|ZET)_[A-Z_]+")
_COMMANDS: Final = """\
# Commands

Written by `python -m softnpu.tools.generators.documents .` from the command line itself.

Every command that prints figures takes `--json` and prints one document then, an object whose first field is
`json_version`, 1: the number grows when a field goes or changes its meaning, not when one is added.

Exit codes: 0, 1 for a failure that is reported in one line on stderr, 2 for wrong usage (options, properties,
variables), 130 after Ctrl-C, which leaves nothing behind. `-h` is short for `--help` everywhere.
`softnpu --install-completion` lets the shell complete commands, options, platforms, properties, models and
documents.

"""
_ENVIRONMENT: Final = """\
# Environment variables

Written by `python -m softnpu.tools.generators.documents .` from the code that reads them. An empty variable
counts as not set, unless noted. An invalid value is an error that names the variable.

| variable | meaning |
| --- | --- |
"""
_PROPERTIES: Final = """\
# Properties of the plugin

Written by `python -m softnpu.tools.generators.documents .` from `plugin/properties`.
[plugin.md](plugin.md#properties) says how they are read and set. RW ones are fixed when a model is compiled,
but for the *live* ones.

| name | type, default | access | what it does |
| --- | --- | --- | --- |
"""
_DEFECTS: Final = """\
# Faults of OpenVINO's CPU device

Written by `python -m softnpu.tools.generators.documents .` from `emulator/openvino/defects/table.py`.

softnpu computes with OpenVINO's CPU device. These are its faults that softnpu knows, with what softnpu does
instead, in the order in which it does so. "Shows memory" and "writes memory" mean memory that is not the
operation's: in the engine that would be memory of other sessions. A report has a program that shows the
fault; `tests/openvino` runs these and others, and says which rows can go because OpenVINO is right. An
address is that of a thread that reports, mends or brought the fault.
"""
_WIDTH: Final = 120
_SHORTER: Final = (
    (re.compile(r"\*\*Usage\*\*:\n\n```console\n\$ (.*)\n```"), r"`\1`"),
    (re.compile(r"\n\* `--help(, -h)?`: .*"), ""),
    (re.compile(r"\n\*\*(Options|Arguments|Commands)\*\*:\n(?=\n(?!\*))"), ""),  # none of which are left
    (re.compile(r"\*\*(Options|Arguments|Commands)\*\*:\n\n"), ""),
    (re.compile(r"\n{3,}"), "\n\n"),
)
_DEFAULTS: Final = {  # that depend on something
    "CACHING_PROPERTIES": "those that change a model",
    "COMPILATION_NUM_THREADS": "number of cores",
    "NPU_MAX_TILES": "of the device",
    "NPU_STEPPING": "of the device",
}
_ELSEWHERE: Final = {  # in C++, and at the installation
    "SOFTNPU_LOG": "`off`: the native driver does not print to stderr why there is no device.",
    "SOFTNPU_WITHOUT_NATIVE": "`1`: `pip install` builds no native driver, and needs no C++ compiler.",
    "ZE_AFFINITY_MASK": "Devices that the native driver reports, such as `1` or `0,2`.",
}


def commands() -> str:
    """Return docs/commands.md: all commands with their options, as Typer writes them, in fewer lines."""
    from softnpu.tools.cli import app

    root: Any = typer.main.get_command(app)
    context = typer.Context(root, info_name="softnpu")
    return _COMMANDS + "\n".join(_of_command(root, name, context) for name in root.list_commands(context))


def _of_command(root: Any, name: str, context: Any) -> str:
    command = root.get_command(context, name)
    if isinstance(command, DeferredGroup):
        command = command.application()
    text = get_docs_for_click(obj=command, ctx=context, name=name, indent=1, call_prefix="softnpu")
    for pattern, replacement in _SHORTER:
        text = pattern.sub(replacement, text)
    return "\n".join(_wrapped(line) for line in text.strip().splitlines()) + "\n"


def _wrapped(line: str) -> str:
    return textwrap.fill(line, _WIDTH, subsequent_indent="  ") if line.startswith("* ") else line


def environment(root: Path) -> str:
    """Return docs/environment.md: the constants that name a variable, with their docstrings."""
    found = dict(_ELSEWHERE)
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found.update(_variables(ast.parse(path.read_text()).body))
    return _ENVIRONMENT + "".join(f"| `{name}` | {found[name]} |\n" for name in sorted(found))


def defects(root: Path) -> str:
    """Return docs/defects.md: the faults of OpenVINO that are known, one line each."""
    from softnpu.emulator.openvino.defects.table import DEFECTS

    lines = []
    for defect in DEFECTS:
        versions = f"seen in {defect.seen_in}"
        versions += f", fixed in {defect.fixed_in}" if defect.fixed_in else ""
        if (root / "docs" / "upstream" / f"{defect.id}.md").exists():
            versions += f", [report](upstream/{defect.id}.md)"
        versions += f", <{defect.upstream}>" if defect.upstream else ""
        text = f"- **{defect.id}** ({defect.harm}; {versions}): {defect.condition}. Here: {defect.remedy}"
        lines.append(textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False))
    return _DEFECTS + "\n" + "\n".join(lines) + "\n"


def properties() -> str:
    """Return docs/properties.md: all properties of the plugin by name."""
    from softnpu.plugin.properties import PROPERTIES

    return _PROPERTIES + "".join(_property(PROPERTIES[name]) for name in sorted(PROPERTIES))


def _property(record: Any) -> str:
    names = " or ".join(f"`{name}`" for name in (record.name, *record.aliases))
    kind = record.kind.type.__name__
    if record.access.value == "RW":
        default = _DEFAULTS.get(record.name) or record.text(record.default) or "empty"
        kind = f"{record.kind.allowed.replace(f' to {INT_MAX}', ' on')} [{default}]"
    levels = "core, model" if record.level.name == "BOTH" else record.level.name.lower()
    access = record.access.value + (", live" if record.live else "")
    cells = (names, kind, f"{access}; {levels}", EFFECTS[record.name])
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def _variables(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        match statement, after:
            case (
                ast.Assign(value=ast.Constant(value=str(name)))
                | ast.AnnAssign(value=ast.Constant(value=str(name))),
                ast.Expr(value=ast.Constant(value=str(meaning))),
            ) if _VARIABLE.fullmatch(name):
                yield name, " ".join(meaning.split())


def main(arguments: list[str]) -> None:
    """Write these documents of the repository `arguments[0]`."""
    root = Path(arguments[0])
    (root / "docs" / "commands.md").write_text(commands())
    (root / "docs" / "environment.md").write_text(environment(root))
    (root / "docs" / "properties.md").write_text(properties())
    (root / "docs" / "defects.md").write_text(defects(root))


if __name__ == "__main__":
    main(sys.argv[1:])
