"""The arithmetic of the device: where it rounds to f16, and how OpenVINO's CPU runtime reproduces that.

`settings`         the options: the precision is f16, the result of an overflow, the layers kept in f32
`dialect`          the real compiler's own words for operations, from `dialect.toml`
`common_passes`    OpenVINO's passes that the real compiler runs first
`operation_types`  what the device fuses, what only moves values, what keeps its precision
`groups`           the groups of a model, each rounded once behind its last operation
`rewriting`        rewrites a model: rounded constants, a rounding behind each group
`divisors`         divisors that are clamped, because f16 rounds them to 0
`decompositions`   operations that the device executes in several steps, with a rounding behind each
`library`          the OpenVINO extension that rounds: found, or built from `rounding.cpp`

OpenVINO is imported only by `common_passes`, `groups`, `rewriting`, `divisors`, `decompositions` and the
calls of `library`.
"""
