"""What is behind ``stationary run``: data, baselines, experiments, results, reports. The library never imports it."""
