"""The limits, authorization and answers that all HTTP ports of the suite share.

Only `process`, `telemetry` and `audit_writer` may import it. It never opens a port.
"""
