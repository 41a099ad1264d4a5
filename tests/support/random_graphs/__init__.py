"""Random operation graphs over every operation, with data, and what they should give."""
