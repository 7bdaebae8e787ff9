"""Random sequences of what programs may do, and of deaths, against a model of what must come of it."""
