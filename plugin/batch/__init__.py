"""Batches that the plugin splits: the device has the model for one sample, and executes it for each.

`looks` and `axes` find where the batch may be, `tracking` with its rules proves that samples do not meet,
`plan` decides, `slots` and `execution` carry it out.
"""
