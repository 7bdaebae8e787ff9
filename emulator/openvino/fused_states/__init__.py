"""States that OpenVINO fuses with attention."""
