"""Random models on OpenVINO's CPU device and on softnpu in every way: are the numbers equal, bit by bit?

`python -m tests.fuzz --models N --seed S`. `graph` and `operations/` make a model, `case` all that one number
stands for. `worker` runs it in a process that may die: `reference` on the CPU device, `plugin_ways` and
`native_ways` on softnpu. `lane` compares, `shrink` makes what differs small, `known` says what is open.
"""
