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
    """A model on the devices assigned by Ray to this actor.

    >>> dataset.map_batches(farm.Predictor, fn_constructor_args=("model.onnx",), batch_size=32, concurrency=4,
    ...                     num_cpus=0, resources={farm.resource("4000"): 1})

    Compiled once per platform in the whole cluster; loaded from one file on each node, with its weights in
    memory once. `model`: a path, an `openvino.Model`, the bytes of a compiled model, or a `farm.Model`.
    `config`, `shapes`: for its compilation. `keep`: columns passed through beside the outputs. `requests`:
    inferences in flight on each device; 0: the model's own number.

    It waits for a lost daemon or device and recomputes lost results; after a minute without devices the
    worker exits, and Ray starts another one.
    Raises `FarmError` for a model that cannot be batched.
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
        """Return a batch's outputs by name: a mapping of arrays, or one array for a model with one input.

        Thread-safe, so an asynchronous actor or deployment awaits `asyncio.to_thread(predictor, batch)`.
        Raises `BatchError` for a batch that does not fit.
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
            if self._loaded is lost:  # otherwise another thread was first
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
    """Count one more recovery; end the worker after too many."""
    if recoveries == _RECOVERIES:
        abandon_worker(failure)
    return recoveries + 1


def _load(model: Model, requests: int) -> RequestPool:
    """Return the model on all devices that Ray has assigned to this worker."""
    from softnpu.plugin import Core

    assignment.lease()
    core = Core()
    devices = core.available_devices
    platform = str(core.get_property(devices[0], "DEVICE_ARCHITECTURE"))
    path = blobs.fetched(model, platform)
    return RequestPool(model.name, [core.import_model(path, device) for device in devices], requests)
