"""Code shared by all processes, apart from protocols: Linux calls, descriptors, spinning, fail-points."""
