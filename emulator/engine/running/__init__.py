"""Running a submission: slices, overlap, pace, injected faults, how it ends."""
