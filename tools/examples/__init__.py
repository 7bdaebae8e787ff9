"""Programs to read and to run: `python -m softnpu.tools.examples.hello_npu`."""
