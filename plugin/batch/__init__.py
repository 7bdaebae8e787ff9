"""Batches split by the plugin: the device has the model for one sample, and executes it for each.

`input_scan` and `axes` find candidate batch axes, `tracking` and its rules prove that samples are
independent, `split` takes the first proven candidate, `plan` decides, `slots` and `execution` run batches.
"""
