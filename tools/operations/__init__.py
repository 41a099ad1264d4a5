"""A trial of the files that ``lowdnn operations export`` writes, in a real Prometheus and Alertmanager."""
