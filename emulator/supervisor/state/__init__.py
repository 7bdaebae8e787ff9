"""What sessions own, and where their memory lies."""
