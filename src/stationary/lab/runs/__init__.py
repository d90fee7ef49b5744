"""Runs of experiments: how those without a result are run, how results are stored, and where they were computed."""
