"""Peer drivers: each runs inside its peer's own environment, so they import the standard library and that peer only."""
