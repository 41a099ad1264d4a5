"""Convolutions of 3x3 taps by Winograd's minimal filtering."""
