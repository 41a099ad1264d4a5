"""Recipes: short programs, one for each common task. ``python -m lowdnn.guide.recipes.NAME`` runs one."""
