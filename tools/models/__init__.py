"""Real models for tests, benchmarks and demonstrations, fetched at run time from packages on PyPI."""
