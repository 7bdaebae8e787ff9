"""The program that fills the engine cache: `__main__`."""
