"""What several commands share: the console, failures, connections, private daemons, pages."""
