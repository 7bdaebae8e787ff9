"""Everything specific to OpenVINO's CPU runtime: images, inferences, caches, corrections of its defects."""
