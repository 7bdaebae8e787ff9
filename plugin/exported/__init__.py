"""Exported models: the file and its metadata, export and import, CACHE_DIR, what a blob requires of a device."""
