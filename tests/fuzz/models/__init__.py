"""Random models on OpenVINO's CPU device and on softnpu in every way: are the numbers equal, bit by bit?

`python -m tests.fuzz --models N --seed S`. `graph` and `operations/` make a model, `case` the whole of what one
number stands for, `ways` runs it, `lane` compares, `shrink` makes what differs small, `known` says what is open.
"""
