"""The race detector: finds accesses that nothing orders, under whatever schedule they happened to run.

Every warp has a vector clock of what it knows about the others (``clocks``). Every granule of shared and global memory
has the epoch of its last write and of its last reads (``accesses``, ``epochs``). An access that does not know an
earlier one, of which at least one writes, is a data race (``races``), told with both places (``reports``).
"""
