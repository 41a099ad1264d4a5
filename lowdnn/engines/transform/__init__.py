"""The engine of what moves elements and computes nothing: transposes, slices, reshapes, concatenations."""
