"""A screen that shows what a daemon does: `softnpu top`."""
