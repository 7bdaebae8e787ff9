"""`softnpu check`: what a program does wrong with the NPU and silicon would not show."""
