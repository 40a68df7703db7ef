"""Benchmarks: scenarios that measure the suite beside its peers in one run, and their figures against the goals."""
