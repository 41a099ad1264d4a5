"""The families of calibration cases, by name."""
