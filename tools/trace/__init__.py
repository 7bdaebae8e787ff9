"""`softnpu trace`: one timeline of the programs, the daemon and its devices."""
