"""Reads frames and confirms them; a sink decides where their changes are stored (ADR 0031).

A confirmer is `EpochFollower` with a sink: the follower speaks with the wal-reader, the sink makes
changes durable and reports how far they are. Publisher and archiver are two of them. Only
confirmers import this package; it knows no sink.
"""
