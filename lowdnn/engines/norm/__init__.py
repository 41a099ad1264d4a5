"""The engines of normalisation."""
