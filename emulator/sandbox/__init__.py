"""The sandbox that engines, compilers and kernels enter: system calls, files and memory they may use."""
