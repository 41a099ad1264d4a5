"""The engine of cumulative sums."""
