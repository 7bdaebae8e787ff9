"""The supervisor: sessions, memory accounting, graphs, and child processes.

It maps no client tensors and does no arithmetic, so no client data can crash it.
"""
