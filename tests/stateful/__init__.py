"""Random sequences of program calls and deaths, checked against a model of their outcome."""
