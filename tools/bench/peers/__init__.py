"""Calls of other libraries for a benchmark's case, by family of cases; ``catalog`` chooses."""
