"""The calibration of the predictions, and predictions beside published measurements of models left out of it.

`data/SOURCES.md` gives the origin of each figure, and lists those that are not independent evidence.
"""
