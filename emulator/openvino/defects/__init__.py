"""Models that OpenVINO's CPU device computes wrongly, and their corrections before compilation."""
