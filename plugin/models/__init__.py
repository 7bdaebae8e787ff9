"""Models on their way to the compiler: read, serialised, their weights shared, their dimensions bounded."""
