"""Answers that were made before: what makes two the same, and where they are kept."""
