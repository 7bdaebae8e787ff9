"""A compiled model: its container, and where the constants that it refers to lie.

===================  ===========================================================
`container`          the file: header, sections, metadata; reads and checks them
`weights`            weight sources, canonical offsets, placement
`weight_space`       the sources of one model, mapped
`constant_digests`   constants compared with the digests in a blob
`argument_bounds`    dimensions reported for an argument without a largest shape
===================  ===========================================================
"""
