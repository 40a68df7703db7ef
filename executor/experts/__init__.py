"""Experts on demand: a mixture's experts stay in the host's memory, those in use on the device."""
