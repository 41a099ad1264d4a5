"""Convolutions with a few channels in each group, on tensor cores, in three directions."""
