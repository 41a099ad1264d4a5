"""Convolutions of one tap with few channels, whose time is that of their pixels' way through memory."""
