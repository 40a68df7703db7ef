"""Scenarios by name: what each answers in one line, and how it is run."""
