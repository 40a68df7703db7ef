"""A suite under mixed load and disturbances for as long as wanted, and what must hold at the end."""
