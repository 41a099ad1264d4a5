"""Convolution engines, a package for each family."""
