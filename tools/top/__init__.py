"""A screen that shows a daemon's activity: `softnpu top`."""
