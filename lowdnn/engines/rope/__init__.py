"""The engine of rotary position embedding."""
