"""``lowdnn doctor``: checks of an installation, a machine and its devices, each with a verdict and a remedy."""
