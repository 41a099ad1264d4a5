"""The engine that moves elements without computing: transposes, slices, reshapes, concatenations."""
