"""The process in which kernels run, a program."""
