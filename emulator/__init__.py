"""The device: supervisor, engine, memory, scheduling and the firmware interface they speak."""
