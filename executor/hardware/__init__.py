"""What this machine has, what suits it, and what was measured on it. Detection and choice are pure; probe.py reads."""
