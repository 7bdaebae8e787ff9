"""A hostile client: it speaks the interface well enough to get in, and then breaks every rule of it.

`python -m tests.fuzz --help`; `dice` has the seeds, `campaign` the whole of it.
"""
