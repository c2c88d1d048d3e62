"""The snapshot-responder service: consistent, parallel copies of tables, on request."""
