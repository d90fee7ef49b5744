"""The mathematics behind the activations: spectra, special functions, duals, factorisation. No training, no files."""
