"""`farm.Predictor`: a model for the batches of Ray Data and the requests of Ray Serve."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from softnpu.farm import assignment, blobs
from softnpu.farm.batching import Rows
from softnpu.farm.errors import FarmError, abandon_worker, is_loss
from softnpu.farm.model import Model
from softnpu.farm.request_pool import RequestPool

_RECOVERIES = 5


class Predictor:
    """A model on the devices that Ray assigned to this actor.

    >>> dataset.map_batches(farm.Predictor, fn_constructor_args=("model.onnx",), batch_size=32, concurrency=4,
    ...                     num_cpus=0, resources={farm.resource("4000"): 1})

    Compiled once for a platform in the whole cluster; on each node loaded from one file, and its weights are
    in memory once. `model`: a path, an `openvino.Model`, the bytes of a compiled model, or a `farm.Model`.
    `config`, `shapes`: what to compile it with. `keep`: columns that stand beside the outputs. `requests`:
    inferences in flight on each device; 0: as the model says.

    A lost daemon or device is waited for, and what was lost is computed again; after a minute without devices
    the worker ends, and Ray starts another one. Raises `FarmError` for a model that cannot be batched.
    """

    def __init__(
        self,
        model: Any,
        *,
        config: Mapping[str, str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        keep: Sequence[str] = (),
        requests: int = 0,
    ) -> None:
        self._model = Model.of(model, config, shapes)
        self._keep = tuple(keep)
        self._requests = requests
        self._lock = threading.Lock()
        self._loaded = self._load_safely()
        outputs = [tensor.name for tensor in self._loaded.rules.outputs]
        if both := sorted({*keep} & {*outputs}):
            raise FarmError(
                f"model {self._model.name}",
                found=f"{', '.join(both)} in keep and among the outputs {', '.join(outputs)}",
                expected="columns with names of their own",
            )

    def __call__(self, batch: Any) -> Rows:
        """The outputs of a batch by name: a mapping of arrays, or one array for a model with one input.

        Raises `BatchError` for a batch that does not fit. May be called from several threads at once, so an
        asynchronous actor or deployment awaits `asyncio.to_thread(predictor, batch)`.
        """
        rows, count = self._loaded.rules.checked(batch, self._keep)
        result = self._infer(rows, count)
        for name in self._keep:
            result[name] = batch[name]
        return result

    def _infer(self, rows: Rows, count: int) -> Rows:
        recoveries = 0
        while True:
            loaded = self._loaded
            try:
                return loaded.infer(rows, count)
            except Exception as failure:
                if not _lost(failure):
                    raise
                recoveries = _counted(failure, recoveries)
            self._recover(loaded)

    def _recover(self, lost: RequestPool) -> None:
        with self._lock:
            if self._loaded is lost:  # else another thread was first
                self._loaded = self._load_safely()

    def _load_safely(self) -> RequestPool:
        recoveries = 0
        while True:
            try:
                return _load(self._model, self._requests)
            except Exception as failure:
                if not _lost(failure):
                    raise
                recoveries = _counted(failure, recoveries)


def _lost(failure: Exception) -> bool:
    return is_loss(failure) or assignment.is_lost()


def _counted(failure: Exception, recoveries: int) -> int:
    """One recovery more; with too many the worker ends."""
    if recoveries == _RECOVERIES:
        abandon_worker(failure)
    return recoveries + 1


def _load(model: Model, requests: int) -> RequestPool:
    """The model on all devices that Ray has assigned to this worker."""
    from softnpu.plugin import Core

    assignment.lease()
    core = Core()
    devices = core.available_devices
    platform = str(core.get_property(devices[0], "DEVICE_ARCHITECTURE"))
    path = blobs.fetched(model, platform)
    return RequestPool(model.name, [core.import_model(path, device) for device in devices], requests)
