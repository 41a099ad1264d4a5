"""Unmodified frameworks on lowdnn's ``libcudnn.so.9`` beside the real one: results, times and the calls that they make.

``python -m tools.checks.frameworks`` runs each line of ``cases.txt`` in two processes on one GPU, with the same seeds.
"""
