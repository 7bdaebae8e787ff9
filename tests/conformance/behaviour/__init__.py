"""The behaviours, one test each, by subject."""
