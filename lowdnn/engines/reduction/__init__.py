"""The engines of reductions with pointwise operations before and after them."""
