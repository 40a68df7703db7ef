"""A run in figures, as a table, as a picture."""
