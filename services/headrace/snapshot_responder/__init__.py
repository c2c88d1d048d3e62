"""The snapshot-responder: consistent, parallel copies of tables, on request.

No other package may import it. No row ever passes through its own process, and it never stores a
chunk twice.
"""
