"""Leaks: what a program that has ended in order made and did not destroy.

Level Zero wants a destroy for each create. The Python driver destroys what Python collects, and what a Python
program holds to its end is no leak: only the native driver notes an `Exit`. OpenVINO's plugin, 2025.0 to
2026.4, destroys all it made, its context last, in destructors that run after that note.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from softnpu.tools.check.findings import Finding, Findings, Frames, Kind, Place
from softnpu.tools.check.notebook import Notebook, Object

_OWNERS: Final = {
    "memory": "context",
    "queue": "context",
    "list": "context",
    "event pool": "context",
    "graph": "context",
    "fence": "queue",
    "event": "event pool",
}


def judge_leaks(book: Notebook, findings: Findings) -> None:
    """Add what is left, one finding for each place that made it."""
    left: dict[tuple[str, Frames], list[tuple[int, Object]]] = defaultdict(list)
    for (session, kind, number), thing in book.objects.items():
        if session in book.exited and not _is_gone(book, session, kind, number):
            left[kind, thing.frames].append((session, thing))
    for (kind, frames), things in left.items():
        session = things[0][0]
        end = "freed" if kind == "memory" else "destroyed"
        size = sum(thing.size for _, thing in things)
        title = f"the program ends, and its {kind} is not {end}"
        findings.add(
            Finding(
                Kind.LEAK,
                f"{title}: {size:,} bytes in all" if size else title,
                (Place("allocated" if kind == "memory" else f"{kind} made", book.process(session), frames),),
                f"{'free' if kind == 'memory' else 'destroy'} it after its last use, or destroy its owner",
                count=len(things),
            )
        )


def _is_gone(book: Notebook, session: int, kind: str, number: int) -> bool:
    """Return whether an object has ended, by itself or with one that owns it."""
    thing = book.objects.get((session, kind, number))
    while thing is not None and not thing.gone:
        kind, number = _OWNERS.get(kind, ""), thing.parent
        thing = book.objects.get((session, kind, number))
    return thing is not None
