"""Self-contained HTML pages: templates, one style for light and dark, no script, no network."""
