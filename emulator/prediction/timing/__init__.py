"""How long the real NPU takes: a model of the device, with bands and sources.

`predict(graph, platform)` is the way in. `devices.py` has the figures of each platform, `data/` the tables
beside them, `providers.py` who says how long a group takes, `calibration.py` what was fitted to published
measurements.
"""

from softnpu.emulator.prediction.timing.predict import predict
from softnpu.emulator.prediction.timing.result import Band, Bound, LayerTime, Prediction

__all__ = ["Band", "Bound", "LayerTime", "Prediction", "predict"]
