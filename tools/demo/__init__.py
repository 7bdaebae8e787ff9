"""A small trained network and its test images: a demonstration that needs no download and no training."""
