"""Example programs: `python -m softnpu.tools.examples.hello_npu`."""
