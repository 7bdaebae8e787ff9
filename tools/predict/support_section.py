"""Will it compile?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from softnpu.emulator.prediction.support import check
from softnpu.emulator.prediction.support.findings import Finding, Support, Verdict
from softnpu.tools.predict.section import Hint, Subject
from softnpu.tools.shared.console import format_count, make_table, out, print_line

_MEANINGS: Final = {
    Verdict.TAKES: "every operation is one that the compiler imports, and no rule speaks against the model",
    Verdict.UNKNOWN: "nothing is known to be refused; see what is not known",
    Verdict.REFUSES: "the compiler does not take it as it is",
}
_LAYERS: Final = 3


class SupportSection:
    """Operations, types, ranks, shapes and properties, by the rules of `emulator/prediction/support`."""

    key = "support"
    title = "Will it compile?"
    same_for_all = False

    def answer(self, subject: Subject, platform: str) -> Support:
        """Return the rules' answer."""
        return check.check(subject.graph, platform, subject.bodies, subject.config)

    def hints(self, answers: Mapping[str, Support]) -> Sequence[Hint]:
        """Suggest a fix for each finding that is not good."""
        return [
            Hint(finding.hint, finding.found, platforms, 3 if finding.verdict is Verdict.REFUSES else 0)
            for finding, platforms in _merged(answers)
            if finding.hint
        ]

    def show(self, answers: Mapping[str, Support], *, details: bool) -> None:
        """Show a line for each platform, then each finding once; with `details` every type of operation."""
        for verdict in Verdict:
            alike = [platform for platform, support in answers.items() if support.verdict is verdict]
            if alike:
                print_line(f"  {', '.join(alike)}: {verdict}; {_MEANINGS[verdict]}")
        for finding, platforms in _merged(answers):
            _show_finding(finding, platforms if len(platforms) < len(answers) else ())
        if details:
            _show_operations(next(iter(answers.values())))


def _merged(answers: Mapping[str, Support]) -> list[tuple[Finding, tuple[str, ...]]]:
    """Return each finding once, with the platforms concerned."""
    platforms: dict[Finding, list[str]] = {}
    for platform, support in answers.items():
        for finding in support.findings:
            platforms.setdefault(finding, []).append(platform)
    merged = [(finding, tuple(names)) for finding, names in platforms.items()]
    return sorted(merged, key=lambda pair: -pair[0].verdict.severity)


def _show_finding(finding: Finding, platforms: Sequence[str]) -> None:
    only = f", {' and '.join(platforms)} only" if platforms else ""
    print_line("")
    print_line(f"  {finding.verdict}: {finding.found}  [{finding.rule}{only}]")
    if finding.layers:
        shown = ", ".join(finding.layers[:_LAYERS])
        more = ", ..." if len(finding.layers) > _LAYERS else ""
        print_line(f"    {format_count(len(finding.layers), 'layer')}: {shown}{more}")
    print_line(f"    taken: {finding.expected}")
    for source in finding.sources:
        print_line(f"    source: {source}")


def _show_operations(support: Support) -> None:
    table = make_table("operations", "type, version", "verdict", "why", right=("layers", "passed"))
    table.columns[2].no_wrap = False
    for each in support.operations:
        passed = f"{each.passed} of {each.tests}" if each.tests else "-"
        table.add_row(f"{each.type}, {each.opset}", each.verdict, each.reason, str(each.count), passed)
    out.print(table)
    print_line("passed: tests in OpenVINO's conformance report of 2024.4, older than the compiler's list")
