"""`softnpu bench predict`: predictions beside published measurements of models left out of the calibration.

Who reads `data/SOURCES.md` knows where each figure comes from, and which ones are no evidence of their own.
"""
