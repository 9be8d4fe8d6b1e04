"""Scores -> approved or rejected, with reasons."""
