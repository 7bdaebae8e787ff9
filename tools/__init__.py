"""The `softnpu` command line and its parts."""
