"""Matrix-product engines: on tensor cores, and without them."""
