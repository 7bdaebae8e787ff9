"""`softnpu bench`: the device measured against peers in the same run, so that ratios are meaningful."""
