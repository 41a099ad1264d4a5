"""Convolution engines: implicit matrix product on tensor cores, direct without them."""
