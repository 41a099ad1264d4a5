"""What stands behind the C functions, by subject; ``catalogue`` has all of it by name."""
