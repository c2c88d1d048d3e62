"""Fixtures of the time machine's tests."""

from tests.support.archiving import s3
from tests.support.time_machine import machine, room

__all__ = ["machine", "room", "s3"]
