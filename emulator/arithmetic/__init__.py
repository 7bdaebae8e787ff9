"""The arithmetic of the device: where it rounds to f16, and how that is done with OpenVINO's CPU runtime.

`settings`         what is chosen: the precision is f16, how overflow ends, which layers stay in f32
`operation_types`  what the device fuses, what only moves values, what keeps its precision
`groups`           the groups of a model, each rounded once behind its last operation
`rewriting`        rewrites a model: rounded constants, a rounding behind each group
`decompositions`   operations that the device executes in several steps, with a rounding behind each
`library`          the extension of OpenVINO that rounds: found, or built from `rounding.cpp`

Imports of OpenVINO are left to `groups`, `rewriting`, `decompositions` and the calls of `library`.
"""
