"""Reads frames and confirms them; a sink decides where their changes are stored (docs/adr/0031).

A confirmer is `EpochFollower` with a sink: the follower communicates with wal-reader, and the sink
makes changes durable and reports how far they are. Publisher and archiver are two of them.

Only `publisher` and `archiver` may import it. It never knows a sink, and never confirms an LSN that
the sink has not reported as durable.
"""
