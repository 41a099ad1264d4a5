"""The engine of masks with a bit for each element."""
