"""One suite of Level Zero behaviour, written against an abstract driver and run on each real one."""
