"""Fixtures for tests against real servers; `headrace.testing.plugin` is the pytest plugin."""
