"""What monitors of a daemon share: samples of it, rates between two samples, names of programs."""
