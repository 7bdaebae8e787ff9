"""Exported models: the file and its metadata, export and import, CACHE_DIR, requirements of a blob."""
