"""Kernels of third parties: WebAssembly modules that compute one operation each, in a process of their own.

`description` reads what a module says about itself, `module` checks and compiles it, `prepared` runs it on
tensors. `wasm_process` is the program that does so, locked in; `client` is the side that calls it. A kernel
may also be a Python function, which `function_process` runs; both serve by `serving`. What a kernel may do is
in docs/kernels.md. Only `client`, `description`, `function_process` and their imports load without wasmtime.
"""
