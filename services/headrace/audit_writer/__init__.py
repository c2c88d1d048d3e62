"""Writes every change of the stream as a row of the audit table, exactly once."""
