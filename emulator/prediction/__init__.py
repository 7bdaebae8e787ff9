"""Predictions of the real NPU's behaviour with a model: speed, support and numbers.

A pure library: a graph goes in, a typed result comes out. No daemon, no driver, no OpenVINO runtime state;
only `reader.py` knows OpenVINO's model.

- `graph.py`: a neutral description of a model: operations, tensors, edges.
- `reader.py`: the graph of an `openvino.Model`.
- `groups.py`: which operations the device fuses, so that it rounds and stores once behind them.
- `bodies.py`: the graphs inside If, Loop and TensorIterator.
- `support/`: what the NPU and its compiler take and refuse, rules with their sources.
- `patterns.py`: kernels that a model spells out in small operations.
- `timing/`: how long each group takes, and what bounds it.
"""
