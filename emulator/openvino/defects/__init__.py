"""Models that OpenVINO's CPU device computes wrongly, and what is done about each before it compiles them."""
