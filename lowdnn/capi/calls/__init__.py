"""The functions in Python behind those in C, by subject; ``catalogue`` has all of them by name."""
