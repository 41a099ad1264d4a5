"""Benchmarks: suites of cases, least times, timing, rows and their comparison. Peers are not here, nor is PyTorch."""
