"""Own kernels in models: their operations in OpenVINO, and images whose parts run around them."""
