"""What other libraries take for a benchmark's case, by family of cases; ``catalog`` chooses."""
