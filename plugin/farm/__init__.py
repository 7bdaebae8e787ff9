"""Emulated NPUs of a Ray cluster.

>>> from softnpu import farm
>>> @farm.remote(devices=1, platform="4000")
... def classify(images): ...

`remote` runs a function or an actor where devices are free, and exposes exactly those to it. `Predictor` runs
a model in Ray Data and Ray Serve. `resource` names a platform's devices among Ray's resources. Needs
softnpu[ray]; see docs/farm.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softnpu.farm.assignment import lease
    from softnpu.farm.decorator import remote
    from softnpu.farm.errors import BatchError, FarmError
    from softnpu.farm.model import Model
    from softnpu.farm.predictor import Predictor
    from softnpu.farm.resources import resource

_MODULES = {
    "BatchError": "errors",
    "FarmError": "errors",
    "Model": "model",
    "Predictor": "predictor",
    "lease": "assignment",
    "remote": "decorator",
    "resource": "resources",
}

__all__ = ["BatchError", "FarmError", "Model", "Predictor", "lease", "remote", "resource"]


def __getattr__(name: str) -> Any:
    # imported on first use: a program that only starts tasks needs neither OpenVINO nor numpy
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"softnpu.farm.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
