"""Remote contexts and remote tensors: memory of the device, or of other programs, as an argument of a request."""
