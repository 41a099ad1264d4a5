"""Engines: pure functions from a graph to a plan, one folder a family, with the kernels beside them."""
