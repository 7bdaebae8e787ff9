"""`softnpu infer`."""
