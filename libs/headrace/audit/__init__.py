"""The audit trail: its table, how events become its rows, and the queries that read and revert it.

Only `audit_writer`, `cli.audit`, `cli.up`, `console`, `settings` and `telemetry` may import it. It
never follows the stream, and never creates a trail again that existed before.
"""
