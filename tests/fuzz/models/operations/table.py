"""How a family lists its operations."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.models.graph import Graph

Entry = Callable[[Graph], object]


class Table(dict[str, Entry]):
    """Entries by name. `entry(name)` is a decorator."""

    def entry(self, *names: str) -> Callable[[Entry], Entry]:
        """Puts a function under each of the names; with several names it is taken more often."""

        def put(function: Entry) -> Entry:
            for name in names:
                assert name not in self, name
                self[name] = function
            return function

        return put
