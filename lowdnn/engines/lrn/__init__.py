"""The engine of cross-channel local response normalisation."""
