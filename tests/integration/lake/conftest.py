"""Fixtures of the lake's tests."""

from tests.support.archiving import archiving

__all__ = ["archiving"]
