"""Benchmarks against peers, and measures of host, planning and emulated device; ``tools/README.md`` lists them."""
