"""Matrix-product parts that the matmul and convolution engines share: tiles, index spaces, split sums, repacking."""
