"""Convolutions as products of spectra."""
