"""What the real NPU and its compiler take, refuse, and what is unknown: rules with their sources.

A pure library: a graph goes in, findings come out. The compiler's strict mode and `softnpu predict` share it.

- `findings.py`: verdicts, sources, findings, and the answer for a model and a platform.
- `rules.py`: the table of rules: statement, source, remedy.
- `importer.toml`: what the importer takes, made of its source by `softnpu.tools.generators.importer`.
- `operations.toml`, `operation_table.py`: that, what is converted first, and results of tests.
- `conditions.py`: attributes and constants that an operation must have.
- `operations.py`, `element_types.py`, `shapes.py`, `configuration.py`: the rules, applied to a graph.
- `check.py`: all of them together.
"""
