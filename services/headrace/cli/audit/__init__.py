"""`headrace audit …`: run, read and revert an audit trail.

Only `cli` may import it. It never changes a row of the source unless a revert is applied.
"""
