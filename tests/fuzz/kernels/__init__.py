"""Random, damaged and hostile kernels: each is an error with a name or a result, and harms nobody."""
