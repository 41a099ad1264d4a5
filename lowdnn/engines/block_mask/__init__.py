"""The engine of masks of tiles of scores."""
