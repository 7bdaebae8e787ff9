"""Child processes: start, messages, CPU time, end."""
