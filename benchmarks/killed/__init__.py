"""A tiny experiment for kill.py: many results in a second, large enough that their writing takes a while."""
