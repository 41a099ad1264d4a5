"""Grouped matrix products of a mixture of experts, whose groups of rows are known on the device only."""
