"""`compile_model` with CACHE_DIR: look for the exported model, import it, or keep what is compiled."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from softnpu.driver import Context, GraphSource
from softnpu.plugin import exporting
from softnpu.plugin.compiled_model import CompiledModel
from softnpu.plugin.errors import BlobError
from softnpu.plugin.importing import import_cached
from softnpu.plugin.model_cache import KEY_TEXT, ModelCache, keeps_no_weights
from softnpu.plugin.properties import ModelProperties


@dataclass(frozen=True)
class Entry:
    """The place of one model in CACHE_DIR; `found` is the model that was there."""

    key: str
    cache: ModelCache
    properties: ModelProperties
    found: CompiledModel | None

    def store(self, compiled: CompiledModel) -> None:
        """Keeps a compiled model, if that is possible."""

        def export(path: Path) -> None:
            model = replace(
                compiled.exportable(),
                weightless=keeps_no_weights(self.properties),
                raw=False,
                extra={KEY_TEXT: self.key},
            )
            exporting.export_entry(model, path)

        self.cache.store(self.key, export)


def look_up(
    context: Context,
    source: GraphSource,
    properties: ModelProperties,
    config: Mapping[str, str],
    shapes: Mapping[str, Sequence[int]] | None,
    log: logging.Logger,
    claims: ExitStack,
) -> Entry | None:
    """The entry of a model that is to be compiled with `config` and `shapes`; None without CACHE_DIR.

    `claims` holds the right to compile it, if it was not found, until it is closed.
    """
    cache = ModelCache.of(properties, log)
    if cache is None:
        return None
    key = cache.key(source, properties, config, shapes)

    def load(path: Path) -> CompiledModel:
        compiled = import_cached(context, path, properties, source)
        if compiled.extra.pop(KEY_TEXT, "") != key:
            raise BlobError(f"exported model {path}: it is another model; expected the one of its name")
        return compiled

    found = cache.load(key, load)
    if found is None:
        claims.enter_context(cache.claimed(key))
        found = cache.load(key, load)  # somebody else may have compiled it while we waited
    return Entry(key, cache, properties, found)
