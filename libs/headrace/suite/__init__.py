"""State that belongs to the suite as a whole: its services in order, and its pause.

Only `console`, `process`, `publisher`, `telemetry` and `cli` may import it. It never starts a
service.
"""
