"""Connections of clients: handshake, frames, leases, rejection."""
