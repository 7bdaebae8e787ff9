"""All that knows the CPU runtime of OpenVINO: images, inferences, caches, and corrections of its defects."""
