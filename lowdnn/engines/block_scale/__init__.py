"""The engine of block-scale quantisation and dequantisation."""
