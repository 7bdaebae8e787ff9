"""A model's entry in CACHE_DIR: imported instead of a compilation, exported after one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from softnpu.driver import Context, GraphSource
from softnpu.emulator.blob.weight_files import file_identities
from softnpu.plugin.errors import BlobError
from softnpu.plugin.exported import exporting
from softnpu.plugin.exported.importing import import_cached
from softnpu.plugin.exported.model_cache import KEY_TEXT, ModelCache, keeps_no_weights
from softnpu.plugin.loaded_model import LoadedModel
from softnpu.plugin.properties import ModelProperties


@dataclass(frozen=True)
class CacheEntry:
    """The entry of one model in CACHE_DIR. `content`: its digest, `files`: the identities of its files."""

    cache: ModelCache
    key: str
    content: bytes
    files: tuple[bytes, ...]
    context: Context
    source: GraphSource
    properties: ModelProperties
    log: logging.Logger

    @classmethod
    def find(
        cls,
        context: Context,
        source: GraphSource,
        properties: ModelProperties,
        config: Mapping[str, str],
        shapes: Mapping[str, Sequence[int]] | None,
        log: logging.Logger,
    ) -> CacheEntry | None:
        """Return the entry of `source`, `config` and `shapes`; None if CACHE_DIR cannot be used."""
        cache = ModelCache.of(properties, log)
        if cache is None:
            return None
        files = _files(source)
        content = cache.content(source)
        key = cache.key(source, content, properties, config, shapes)
        return cls(cache, key, content, files, context, source, properties, log)

    def load_or_claim(self, claim: ExitStack, hint: bytes) -> LoadedModel | None:
        """Import the entry as a graph with this hint (`expected_graphs`).

        Without an entry, `claim` receives the right to compile it, and None is returned.
        """
        load = partial(self._import, hint)
        cached: LoadedModel | None = self.cache.load(self.key, load)
        if cached is None:
            claim.enter_context(self.cache.claimed(self.key))
            cached = self.cache.load(self.key, load)  # another process may have compiled it meanwhile
        return cached

    def store(self, loaded: LoadedModel) -> None:
        """Export a compiled model into the cache, if possible."""
        if not self._is_unchanged():
            self.log.warning(
                "CACHE_DIR: model '%s' is not stored: its files were written to while it was compiled",
                self.source.name,
            )
            return
        weightless = keeps_no_weights(self.properties)
        extra = {KEY_TEXT: self.key}
        self.cache.store(self.key, lambda path: exporting.export_entry(loaded, extra, weightless, path))

    def _is_unchanged(self) -> bool:
        """Return whether what was compiled is the model of the key."""
        files = _files(self.source)
        if files != self.files:
            return False
        # a file may change again with the same time stamp: its digest is kept only once it is old enough
        return not any(files) or self.cache.content(self.source) == self.content

    def _import(self, hint: bytes, path: Path) -> LoadedModel:
        loaded = import_cached(self.context, path, self.properties, self.source, hint)
        extra = dict(loaded.extra)
        if extra.pop(KEY_TEXT, "") != self.key:
            raise BlobError(f"exported model {path}: it is another model; expected the one of its name")
        return replace(loaded, extra=extra)


def _files(source: GraphSource) -> tuple[bytes, ...]:
    return file_identities([source.xml_fd, *(file.fd for file in source.weights)])
