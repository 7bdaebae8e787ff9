"""The messages between `bench load` and its processes. Loads neither OpenVINO nor the plugin."""

from __future__ import annotations

import enum

import msgspec

_CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


class Way(enum.Enum):
    """The state that a starting program finds."""

    COLD = "cold"
    DRIVER_CACHE = "driver cache"
    CACHE_DIR = "CACHE_DIR"
    IMPORT = "import"
    LOADED = "driver cache, loaded by another process"
    LOADED_IMPORT = "import, loaded by another process"

    @property
    def is_loaded(self) -> bool:
        """Whether another process has the model loaded."""
        return self in (Way.LOADED, Way.LOADED_IMPORT)

    @property
    def prepared(self) -> Way:
        """The way whose files a start finds."""
        return {Way.LOADED: Way.DRIVER_CACHE, Way.LOADED_IMPORT: Way.IMPORT}.get(self, self)


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start. `side` is npu or cpu, `cache` a directory or empty, `exported` a compiled model's file.

    `prepare` fills the cache, or writes that file.
    """

    side: str
    way: Way
    model: str
    shapes: dict[str, tuple[int, ...]]
    socket: str
    cache: str
    exported: str
    prepare: bool = False

    @property
    def imports(self) -> bool:
        """Whether the program starts from the exported model."""
        return self.way.prepared is Way.IMPORT and not self.prepare

    @property
    def config(self) -> dict[str, str]:
        """The properties of the compilation."""
        return {**_CONFIG, "CACHE_DIR": self.cache} if self.way is Way.CACHE_DIR else dict(_CONFIG)


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The result, in milliseconds; `compile_ms` excludes `load_ms`. `outputs` is their digest."""

    total_ms: float
    compile_ms: float
    load_ms: float
    first_ms: float
    cached: bool
    outputs: str
