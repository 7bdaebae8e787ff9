"""`softnpu kernel`: write, build, test and measure kernels (docs/kernels.md)."""
