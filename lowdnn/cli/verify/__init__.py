"""``lowdnn verify``: cases as a canary of a node, against references or against saved outputs."""
