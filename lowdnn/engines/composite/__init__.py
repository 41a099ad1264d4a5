"""The engine of last resort: a chain of other engines' plans."""
