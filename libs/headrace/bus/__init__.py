"""The internal bus between wal-reader and those who must confirm: frames one way, control messages
the other.

It runs over NATS core, which may drop, repeat or delay messages, so nothing rests on it: sequence
numbers, epochs and confirmed LSNs make every loss visible and every recovery a replay from
PostgreSQL's slot (docs/adr/0002).
"""
