"""Convolutions of few input channels, folded into ones with more channels."""
