"""Implicit matrix products with ``wgmma`` and operands that tensor maps copy."""
