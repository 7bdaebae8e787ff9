"""A compiled model: its container, and the location of the constants that it refers to.

===================  ===========================================================
`container`          the file: header, sections, metadata; reads and checks them
`weights`            weight sources, canonical offsets, placement
`weight_space`       the sources of one model, mapped
`constant_digests`   checks constants against the digests in a blob
`argument_bounds`    dimensions reported for an argument without a largest shape
===================  ===========================================================
"""
