"""The list of all metrics."""
