"""`softnpu bench predict`: predictions beside published measurements of models left out of the calibration.

`data/SOURCES.md` gives the origin of each figure, and lists those that are not independent evidence.
"""
