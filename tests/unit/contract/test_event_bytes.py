"""Events from bytes: what fuzzing found, by hand, and numbers that a reader must not round."""

from __future__ import annotations

import pytest

from headrace.contract import events
from headrace.contract.values import Encoding
from headrace.errors import DecodeError

# A zstd frame whose header tells a size of 2⁴⁰ bytes, and a last block of nothing.
TERABYTE = bytes.fromhex("28b52ffd e0") + (1 << 40).to_bytes(8, "little") + b"\x01\x00\x00"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x81\x91\x01\x02",
        b"\xdd\xff\xff\xff\xff",
        b"[" * 100_000,
        b"\x91" * 100_000,
        TERABYTE,
        b"{}x",
    ],
    ids=[
        "nothing",
        "unused",
        "a list as key",
        "too long",
        "deep json",
        "deep msgpack",
        "terabyte",
        "a rest",
    ],
)
def test_bytes_that_are_no_event_are_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        events.decode(data)


def test_numbers_that_python_does_not_read_stay_text() -> None:
    digits = "9" * 5000
    assert events.decode(f'{{"a": 1e400, "b": {digits}}}'.encode()) == {"a": "1e400", "b": digits}


def test_integers_beyond_64_bits_are_strings_of_their_digits_as_in_messagepack() -> None:
    assert events.decode(b'{"a": [12345678901234567890123, -9223372036854775808, 1.5]}') == {
        "a": ["12345678901234567890123", -9223372036854775808, 1.5]
    }


@pytest.mark.parametrize("encoding", list(Encoding))
def test_a_value_without_a_form_is_refused_and_not_shown(encoding: Encoding) -> None:
    with pytest.raises(DecodeError) as caught:
        events.encode({"data": {"secret": 1 << 70}}, encoding)
    assert str(1 << 70) not in str(caught.value)
