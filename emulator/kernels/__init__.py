"""Kernels of third parties: WebAssembly modules that compute one operation each, in a process of their own.

`description` reads what a module says about itself, `module` checks and compiles it, `prepared` runs it on
tensors. `sandbox` is the program that does so, locked in; `client` is the side that calls it. What a kernel
may do is in docs/kernels.md. Only `client`, `description` and what they import load without wasmtime.
"""
