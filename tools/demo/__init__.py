"""A small trained network and its test images, so that a demonstration needs no download and no patience."""
