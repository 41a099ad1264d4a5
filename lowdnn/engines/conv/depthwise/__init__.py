"""Convolutions with one channel in each group, in three directions."""
