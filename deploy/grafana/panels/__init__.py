"""The content of the Grafana dashboards: a module for each, with its panels and their queries.

Only `dashboards.py`, next to this package, imports it. Never reads or writes a file.
"""
