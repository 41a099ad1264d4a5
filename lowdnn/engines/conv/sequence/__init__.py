"""Engines of causal convolutions along sequences."""
