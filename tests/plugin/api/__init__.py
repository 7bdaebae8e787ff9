"""What OpenVINO's own Python tests check, as a table: each behaviour runs with both, and must be the same.

A module is one of OpenVINO's test files, a function one of its tests, or a behaviour that they do not test:
`core.get_version` is `test_get_version` of `test_core.py`. Each gets a `Side` and returns plain values, or
raises; the other side must do the same.
"""
