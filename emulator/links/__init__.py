"""Private protocols: what the supervisor says to its engines and to its compiler workers."""
