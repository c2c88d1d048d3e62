"""Metrics: the catalogue of names, how they are counted, and their reference page."""
