"""Programs that train with PyTorch: on its own kernels, on ``lowdnn.torch``, and on lowdnn's ``libcudnn.so.9``."""
