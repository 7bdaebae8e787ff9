"""Batches that the plugin splits: the device has the model for one sample, and executes it for each.

`input_scan` and `axes` find candidates for the axis of the batch, `tracking` and its rules prove that samples
are independent, `split` takes the first candidate with a proof, `plan` decides, `slots` and `execution` run
batches.
"""
