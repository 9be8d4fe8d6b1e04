"""The table of wrong input: what is handed in, what the user sees, the exit code."""
