"""Pointwise convolutions with several pixels in a row of the product."""
