"""Files for the people on call: Prometheus' rules, Alertmanager's routes, and dashboards for Grafana.

``lowdnn operations export DIRECTORY`` writes them; ``lowdnn guide operations`` says how they are used. Rules and routes
lie in ``files/`` as they are. The panels of the dashboards are declared in ``dashboards``.
"""
