"""The guide: pages that ``lowdnn guide`` prints, recipes that are programs, and the reference of public names."""
