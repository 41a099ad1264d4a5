"""Engines: pure functions from a graph to a plan, in one folder for each family, together with the kernels."""
