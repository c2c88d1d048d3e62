"""Values of "char", whose texts PostgreSQL 18 gave."""

from __future__ import annotations

import pytest

from headrace.sql.value_forms.others import one_byte


@pytest.mark.parametrize(
    ("text", "value"),
    [("a", b"a"), ("\\", b"\\"), ("\\377", b"\xff"), ("\\200", b"\x80"), ("", b"\0")],
)
def test_every_text_is_its_byte(text: str, value: bytes) -> None:
    assert one_byte(text) == value
