"""The program that fills the cache of what OpenVINO has compiled: `__main__`."""
