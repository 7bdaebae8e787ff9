"""Running submissions: slices, overlap, pacing, injected faults, endings."""
