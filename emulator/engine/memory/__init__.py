"""Memory of clients as the engine maps it, checks of ranges, staging, memory that others can cut."""
