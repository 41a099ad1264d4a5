"""The engine of paged caches."""
