"""Remote contexts and remote tensors: memory of the device or of another program as an argument."""
