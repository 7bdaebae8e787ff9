"""What monitors see: activity, traces, files as the kernel has them."""
