"""Engines over rows: the layout of rows, how they are divided among threads and blocks, and the kernels' arguments."""
