"""The engine of reductions with pointwise operations around them."""
