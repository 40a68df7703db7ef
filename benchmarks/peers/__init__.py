"""Peers: other serving systems, each in an environment of its own, driven over a pipe."""
