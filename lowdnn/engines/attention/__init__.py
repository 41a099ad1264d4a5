"""The engines of attention."""
