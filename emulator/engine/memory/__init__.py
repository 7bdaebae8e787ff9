"""Client memory as mapped by the engine: range checks, staging, foreign memory."""
