"""Every function of the API headers, and what becomes of it here. `docs/level-zero.md` is printed from this.

python -m tests.conformance.call_document > docs/level-zero.md
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Iterator

from tests.conformance.call_tables import CALLS, Call, Status

_INTRODUCTION = """\
# Level Zero, call by call

Printed by `python -m tests.conformance.call_document`; a test compares it with the code, so change
`tests/conformance/call_tables.py` and not this file.

The core API is that of Level Zero 1.15, the graph extension that of version 1.16. Of sysman and tools only
what Intel's NPU driver has is listed.

- *supported*: the Python objects have it, under the name in the table. Results other than SUCCESS and
  NOT_READY are raised as `ZeError`, whose `result` has the name and number of the header. Out parameters are
  return values, descriptors are keywords, and a pair of calls for the size and for the data is one call.
- *refused*: the function exists and its answer is UNSUPPORTED_FEATURE, here as in Intel's driver. That needs
  a driver with a C interface: the Python objects have no method for it.
- *absent*: the slot of the function table is empty, and the loader answers. The Python objects have no
  method for it.

`Driver`, `Device`, `Context`, `CommandQueue`, `CommandList`, `Fence`, `Event`, `Graph`, `GraphExtension` and
`BuildLog` are in `softnpu.driver`; other classes in the module of it that is named after the object.
"""
_WIDTH = 110


def document() -> str:
    """The text of `docs/level-zero.md`."""
    return "\n".join([_INTRODUCTION, *_summary(), *_sections()])


def _summary() -> Iterator[str]:
    yield "| header | supported | refused | absent |"
    yield "| --- | --: | --: | --: |"
    for header, calls in _by_header():
        counts = (sum(call.status is status for call in calls) for status in Status)
        yield f"| `{header}` | {' | '.join(str(count) for count in counts)} |"
    yield ""


def _sections() -> Iterator[str]:
    for header, of_header in _by_header():
        yield f"## `{header}`\n"
        for part, grouped in itertools.groupby(of_header, key=lambda call: call.part):
            calls = list(grouped)
            yield f"### {part}\n"
            yield from _table(calls)
            for status in (Status.REFUSED, Status.ABSENT):
                yield from _list(status, calls)


def _by_header() -> Iterator[tuple[str, list[Call]]]:
    for header, calls in itertools.groupby(CALLS, key=lambda call: call.header):
        yield header, list(calls)


def _table(calls: Iterable[Call]) -> Iterator[str]:
    """What there is something to say of."""
    rows = [call for call in calls if call.status is Status.SUPPORTED or call.remark]
    if not rows:
        return
    yield "| function | | in Python | remark |"
    yield "| --- | --- | --- | --- |"
    for call in rows:
        python = f"`{call.python}`" if call.python else ""
        yield f"| `{call.name}` | {call.status.value} | {python} | {call.remark} |"
    yield ""


def _list(status: Status, calls: Iterable[Call]) -> Iterator[str]:
    names = [f"`{call.name}`" for call in calls if call.status is status and not call.remark]
    if names:
        text = f"{status.value.capitalize()}: {', '.join(names)}."
        yield textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


if __name__ == "__main__":
    print(document(), end="")
