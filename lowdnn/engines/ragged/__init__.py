"""The engine of ragged tensors."""
