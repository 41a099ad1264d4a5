"""lowdnn: deep-learning primitives for NVIDIA GPUs, driven at the level of the CUDA driver API."""

__version__ = "0.1.0"
