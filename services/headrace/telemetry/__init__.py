"""Telemetry: one place that shows the whole suite, over HTTP and on stdout."""
