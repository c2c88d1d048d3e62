"""Fixtures of the lake's tests."""

from tests.support.archiving import archiving, s3

__all__ = ["archiving", "s3"]
