"""The private protocols between the supervisor and its engines and compiler workers."""
