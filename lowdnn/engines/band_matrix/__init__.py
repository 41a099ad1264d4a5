"""The engine of band matrices."""
