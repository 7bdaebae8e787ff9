"""Predicted times of the real NPU: a model of the device, with bands and sources.

`predict(graph, platform)` is the entry point. `devices.py` has the figures of each platform, `data/` their
tables, `providers.py` the sources of group times, `calibration.py` the factors fitted to published
measurements.
"""

from softnpu.emulator.prediction.timing.predict import predict
from softnpu.emulator.prediction.timing.result import Band, Bound, LayerTime, Prediction

__all__ = ["Band", "Bound", "LayerTime", "Prediction", "predict"]
