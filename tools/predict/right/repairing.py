"""The list of f32 layers that makes a model right: widened until it does, then reduced.

The list has types and patterns, as the real compiler's does, so a name keeps every layer of its type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import openvino as ov

from softnpu.emulator.arithmetic import dialect, groups
from softnpu.emulator.arithmetic import operation_types as types
from softnpu.tools.predict.right.points import Points
from softnpu.tools.predict.right.result import Trouble

_FUSED: Final = "RMS"
_PATTERNS: Final = (*dialect.PATTERNS, _FUSED)
_LOST: Final = frozenset({Trouble.OVERFLOWS, Trouble.VANISHES})
_NEVER: Final = frozenset({"Parameter", "Constant", "Result", "ReadValue", "Assign"})


@dataclass(frozen=True)
class Names:
    """The operations of a model by the names that a list can have.

    `owners` maps each operation, also a step of one that the device executes in several, to the model's layer
    and its type; `kept` are the operations that each name keeps. The compiler fuses the steps of a root mean
    square, which therefore go by RMS alone.
    """

    owners: Mapping[str, tuple[str, str]]
    kept: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, source: ov.Model, base: ov.Model) -> Names:
        """Build from a model, and from the same in the device's steps."""
        layers = {node.friendly_name: node.get_type_name() for node in source.get_ordered_ops()}
        owners = {}
        for node in base.get_ordered_ops():
            name = node.friendly_name
            owner = next((each for each in _prefixes(name) if each in layers), name)
            owners[name] = owner, layers.get(owner, node.get_type_name())
        kinds = {kind for kind in layers.values() if kind in types.TYPES and dialect.words([kind])}
        by_name = {node.get_name(): node.friendly_name for node in source.get_ordered_ops()}
        kept = {
            name: frozenset(by_name[each] for each in groups.kept_in_f32(source, frozenset({name})))
            for name in sorted({*kinds, *_PATTERNS})
        }
        fused = kept[_FUSED]
        kept = {name: names if name == _FUSED else names - fused for name, names in kept.items()}
        return cls(owners, {name: names for name, names in kept.items() if names})

    def of_layers(self, layers: Iterable[str]) -> frozenset[str]:
        """Return the types of these operations, as far as a list can name them."""
        fused = self.kept.get(_FUSED, frozenset())
        owners = [self.owners[each] for each in layers if each in self.owners]
        names = {_FUSED if layer in fused else kind for layer, kind in owners}
        return frozenset(names) & frozenset(self.kept)

    def operations(self, names: Iterable[str]) -> frozenset[str]:
        """Return the operations that a list keeps in f32."""
        return frozenset[str]().union(*(self.kept.get(name, frozenset()) for name in names))

    def count(self, names: Iterable[str]) -> int:
        """Count these operations."""
        return len(self.operations(names))


def to_keep_in_f32(
    points: Points, troubles: Mapping[str, Trouble], moving: Callable[[str], bool], wide: bool = False
) -> Iterator[str]:
    """Yield the operations that must stay in f32 for these points, by name.

    A value that f16 cannot hold must reach its readers in f32; a cancelling layer needs its inputs in f32.
    `wide`: both, for all of them.
    """
    for key, trouble in troubles.items():
        point = points.points[key]
        yield from (each for each in point.group if not moving(each) or trouble not in _LOST)
        if wide or trouble in _LOST:
            yield from point.after
        if wide or trouble not in _LOST:
            for source in point.reads:
                yield from (each for each in points.points[source].group if not moving(each))


@dataclass
class Search:
    """Searches for the list that keeps fewest operations, with at most `runs` calls of `is_right`."""

    names: Names
    is_right: Callable[[frozenset[str]], bool]
    runs: int
    ended: bool = field(default=False, init=False)
    _tried: dict[frozenset[str], bool] = field(default_factory=dict, init=False)

    def smallest(self, right: frozenset[str]) -> frozenset[str]:
        """Reduce the list `right`: no name can be left out or replaced by a narrower one."""
        self._tried[self.names.operations(right)] = True
        shrunk = True
        while shrunk and not self.ended:
            shrunk = False
            for name in sorted(right, key=lambda each: (-self.names.count([each]), each)):
                smaller = next((each for each in self._without(right, name) if self._try(each)), None)
                if smaller is not None:
                    right, shrunk = smaller, True
                    break
        return right

    def _without(self, right: frozenset[str], name: str) -> Iterator[frozenset[str]]:
        """Yield `right` without a name, or with a pattern instead of it that keeps fewer operations."""
        rest = right - {name}
        yield rest
        narrower: Sequence[str] = sorted(
            (
                pattern
                for pattern in _PATTERNS
                if pattern not in right and self.names.kept.get(pattern, frozenset()) & self.names.kept[name]
            ),
            key=lambda pattern: self.names.count([*rest, pattern]),
        )
        for pattern in narrower:
            if self.names.count([*rest, pattern]) < self.names.count(right):
                yield rest | {pattern}

    def _try(self, names: frozenset[str]) -> bool:
        """Return whether the model is right with a list; lists that keep the same operations are one."""
        kept = self.names.operations(names)
        if kept in self._tried:
            return self._tried[kept]
        if not kept or len(self._tried) >= self.runs:
            self.ended |= bool(kept)
            return False
        self._tried[kept] = self.is_right(names)
        return self._tried[kept]


def _prefixes(name: str) -> Iterator[str]:
    """Yield `a/b/c`, `a/b`, `a`."""
    yield name
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name
