"""The telemetry service: metrics, status and health of the whole suite, over HTTP and on stdout.

No other package may import it. It never delays the stream.
"""
