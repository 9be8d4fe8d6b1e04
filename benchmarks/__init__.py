"""Measurements beside what a user would take instead; each file says how it is run."""
