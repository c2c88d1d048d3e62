"""The audit-writer: writes every change of the stream as a row of the audit table, exactly once.

No other package may import it. It never confirms an LSN, and never writes a row twice.
"""
