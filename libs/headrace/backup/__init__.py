"""The physical log and base backups in a folder or bucket, and the way back to any moment.

`store.py` holds the objects, `segments.py` says which of the log is there without a hole,
`commits.py` reads commits and dropped relations out of it, `base_backup.py` takes backups,
`plan.py` and `restore.py` turn them into a running server again. PostgreSQL replays the log.

Only `cli` and `wal_archiver` may import it. It never interprets a row, and never overwrites an
object of the log or of a backup.
"""
