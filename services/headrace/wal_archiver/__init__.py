"""wal-archiver: PostgreSQL's physical log into a backup store, without a hole.

It receives the log on one connection after another, and each continues from the store's listing.

No other package may import it. It never confirms log that is not stored, and never removes an
object except parts of a segment that a larger object contains.
"""
