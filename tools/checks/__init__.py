"""Checks of lowdnn's sources and searches for faults in it; ``tools/README.md`` lists them."""
