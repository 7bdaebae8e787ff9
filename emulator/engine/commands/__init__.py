"""The commands of a program: decoding and checks, copies, inferences, hazards."""
