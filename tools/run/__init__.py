"""`softnpu run` and `softnpu env`."""
