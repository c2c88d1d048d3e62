"""Metrics: the catalogue of their names, how they are counted, and their reference page.

Any package may import it. It never opens a port, and never uses a row's value as a label.
"""
