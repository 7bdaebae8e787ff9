"""A small trained network and its test images, so that a demonstration needs neither network nor patience."""
