"""Reads frames and confirms them; a change store decides where changes are stored (docs/adr/0031).

A confirmer is `EpochFollower` with a change store: the follower communicates with wal-reader, the
store makes changes durable and reports how far they are. Publisher and archiver are two of them.

Only `publisher` and `archiver` may import it. It never knows a store, and never confirms an LSN
that the store has not reported as durable.
"""
