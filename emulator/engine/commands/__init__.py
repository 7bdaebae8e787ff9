"""Commands of a program: decoded and checked, copies, inferences, what they read and overwrite."""
