"""The engine of pointwise graphs."""
