"""Implicit matrix products with ``mma.sync``: each direction as a forward pass over views of the tensors."""
