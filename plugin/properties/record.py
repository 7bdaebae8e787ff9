"""The record of one property."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from softnpu.plugin.properties.kinds import Kind


class Access(enum.Enum):
    """Whether a property can be set."""

    RO = "RO"
    RW = "RW"


class Level(enum.Flag):
    """Where a property can be read. Every RW property can be given to `compile_model`."""

    CORE = 1
    MODEL = 2
    BOTH = 3


class Use(enum.Enum):
    """What a property acts on."""

    TELLS = "tells"
    COMPILER = "compiler"
    QUEUE = "queue"
    PLUGIN = "plugin"
    RECORDED = "recorded only"


@dataclass(frozen=True, kw_only=True)
class Property:
    """One property. `doc` says what it does here, also when that is nothing.

    `default` is None where it depends on the device or the table. `live`: a compiled model can be given
    another value. `cached`: it changes what a compiled model is, so it is part of the key of OpenVINO's
    cache.
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
        """`Access` for somebody at `level`: a compiled model is fixed, but for what is live."""
        return self.access if level is Level.CORE or self.live else Access.RO

    def text(self, value: Any) -> str:
        """A value of this property as OpenVINO writes it."""
        return self.kind.text(value)
