"""What all processes share and no protocol needs: Linux calls, descriptors, spinning, fail-points."""
