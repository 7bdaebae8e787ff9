"""A hostile client: it speaks the interface well enough to connect, then breaks every rule of it.

See `python -m tests.fuzz --help`; `dice` has the seeds, `campaign` the whole run.
"""
