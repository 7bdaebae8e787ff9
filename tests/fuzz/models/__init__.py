"""Random models on OpenVINO's CPU device and on softnpu in every way, compared bit by bit.

`python -m tests.fuzz --models N --seed S`. `graph` and `operations/` make a model, `case` everything derived
from one number. `worker` runs it in a process that may die: `reference` on the CPU device, `plugin_ways` and
`native_ways` on softnpu. `lane` compares, `shrink` reduces a difference, `known` lists open ones.
"""
