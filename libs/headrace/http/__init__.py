"""The limits, authorization and answers that all HTTP ports of the suite share.

Only `process`, `telemetry`, `audit_writer`, `lake_writer` and `console` may import it. It never
opens a port.
"""
