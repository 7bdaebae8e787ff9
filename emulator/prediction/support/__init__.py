"""What the real NPU and its compiler take, refuse, and what is unknown: rules with their sources.

A pure library: a graph goes in, findings come out. The compiler's strict mode and `softnpu predict` share it.

- `findings.py`: verdicts, sources, findings, and the answer for a model and a platform.
- `rules.py`: the table of rules: statement, source, remedy.
- `operations.toml`, `operation_table.py`: what the NPU compiler does with each operation.
- `operations.py`, `element_types.py`, `shapes.py`, `configuration.py`: the rules, applied to a graph.
- `check.py`: all of them together.
"""
