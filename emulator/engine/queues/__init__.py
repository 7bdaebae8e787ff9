"""Queues: rings and fences, contexts, and the scheduler that picks the next queue."""
