"""`softnpu compare`: a model on the emulated NPU against a reference, down to the layer that differs.

`tolerances`, `statistics`, `dependencies`, `verdict`, `bisect` and `reduce` know no device: they take arrays
and functions. `graph` edits models; `runners`, `references` and `candidate` execute them; `comparing`
combines them all.
"""
