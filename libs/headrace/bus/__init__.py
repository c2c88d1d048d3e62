"""The internal bus: frames from wal-reader to its confirmers, control messages back.

It runs over NATS core, which may drop, repeat or delay messages, so nothing relies on delivery:
sequence numbers, epochs and confirmed LSNs make every loss visible, and every recovery is a replay
from PostgreSQL's slot (docs/adr/0002).

Any package may import it. It never stores anything, and never looks into a message of PostgreSQL.
"""
