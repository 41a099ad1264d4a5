"""Tuning: the candidates of a graph, timed on its device, and the records of what ran fastest.

``records`` is what is kept, ``record_files`` how it lies on disk, ``record_books`` whose records a handle reads.
``search`` chooses candidates by the cost model and ``race`` decides when enough was timed: both are pure. ``timers``
times plans, ``tensors`` holds their data, ``compilers`` compiles beforehand in other processes, ``tuner`` does it all.
"""
