"""Graphs that are almost a pattern which engines take whole: exact patterns, mutations of them, and their checks."""
