"""States that OpenVINO fuses into attention."""
