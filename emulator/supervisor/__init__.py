"""The management core: sessions, memory accounting, graphs, and the processes that it watches.

It maps no tensor of a client and does no arithmetic, so nothing that a client sends can take it down.
"""
