"""The record of one property."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from softnpu.plugin.properties.kinds import Kind, Switch


class Access(enum.Enum):
    """Whether a property can be set."""

    RO = "RO"
    RW = "RW"


class Level(enum.Flag):
    """Where a property can be read. Every RW property can be passed to `compile_model`."""

    CORE = 1
    MODEL = 2
    BOTH = 3


class Use(enum.Enum):
    """The component that a property acts on."""

    REPORTED = "reported"
    COMPILER = "compiler"
    QUEUE = "queue"
    PLUGIN = "plugin"
    RECORDED = "recorded only"


class Property(msgspec.Struct, frozen=True, kw_only=True):
    """One property. `doc` describes its effect here, or says that it has none.

    `default` is None where it depends on the device or the table. `live`: settable on a compiled model.
    `cached`: it changes the compiled model, so it is part of the key of OpenVINO's cache.
    """

    name: str
    kind: Kind
    doc: str
    use: Use
    default: Any = None
    access: Access = Access.RW
    level: Level = Level.BOTH
    live: bool = False
    cached: bool = False
    aliases: tuple[str, ...] = ()

    def access_at(self, level: Level) -> Access:
        """Return the access at `level`: on a compiled model only live properties can be set."""
        return self.access if level is Level.CORE or self.live else Access.RO

    def text(self, value: Any) -> str:
        """Return a value of this property as OpenVINO writes it."""
        return self.kind.text(value)


def switch(name: str, use: Use, doc: str, *, cached: bool = False) -> Property:
    """Return a property that is NO by default."""
    return Property(name=name, kind=Switch(), doc=doc, use=use, default=False, cached=cached)
