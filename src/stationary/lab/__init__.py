"""What is behind ``stationary run``: data sets, baselines, experiments, stored results and reports.

The rest of the library never imports this package.
"""
