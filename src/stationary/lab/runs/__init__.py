"""Runs: where results are stored, where they come from, and how what is missing is run."""
