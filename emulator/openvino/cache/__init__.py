"""What OpenVINO has compiled, kept on disk, and imported before it is asked for."""
