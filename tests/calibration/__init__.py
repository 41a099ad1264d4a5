"""Calibration of the emulated device against a real GPU: micro-kernels, what an NVIDIA H200 gave, and the comparison.

``cases`` builds the kernels, ``data`` holds the recorded results, ``tools/calibrate.py`` records and checks.
"""
