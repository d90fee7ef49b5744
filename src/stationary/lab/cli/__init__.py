"""The command line, ``stationary``: its commands, what they print and how they choose configurations."""
