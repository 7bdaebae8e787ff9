"""The disk cache of models that OpenVINO has compiled, and their import ahead of use."""
