"""The engine of pooling and interpolation, forward and backward."""
