"""Which engine runs a graph: a cost model over plans, and the ranked list that comes out of it."""
