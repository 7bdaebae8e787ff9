"""The registry of a family's operations."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.models.graph import Graph

Entry = Callable[[Graph], object]


class Table(dict[str, Entry]):
    """Entries by name. `entry(name)` is a decorator."""

    def entry(self, *names: str) -> Callable[[Entry], Entry]:
        """Register a function under each of the names; more names make it more frequent."""

        def put(function: Entry) -> Entry:
            for name in names:
                assert name not in self, name
                self[name] = function
            return function

        return put
