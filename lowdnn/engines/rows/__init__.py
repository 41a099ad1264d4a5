"""What engines over rows share: layouts, tiles, kernels' arguments."""
