"""Who of several schedulers leads: one at a time, by a lease."""
