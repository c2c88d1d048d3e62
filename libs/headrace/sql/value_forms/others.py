"""Binary forms of types that the copy has as texts, and forms of bytes and UUIDs."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.sql.errors import NotProvenEqualError
from headrace.sql.value_forms.arrow import Array, buffer, filled, lengths, matrix, pc, with_nulls_of

# Both digits of a byte as one number: a column of any length is one look-up.
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
_UUID_CHARACTERS = 36
# PGSQL_AF_INET and PGSQL_AF_INET6 of PostgreSQL's inet.h: AF_INET, and the number after it.
_IPV4 = 2
_IPV6 = 3


def bytea_texts(column: Array) -> Array:
    """Hexadecimal digits after `\\x`."""
    kept = filled(column, b"")
    sizes = lengths(kept)
    ends = np.zeros(len(kept) + 1, np.int32)
    np.cumsum(sizes * 2, out=ends[1:])
    start = np.frombuffer(kept.buffers()[1], np.int32)[kept.offset] if len(kept) else 0
    data = np.frombuffer(kept.buffers()[2] or b"", np.uint8)[start : start + int(sizes.sum())]
    digits = buffer(_HEX[data])
    texts = pa.Array.from_buffers(pa.string(), len(kept), [None, buffer(ends), digits])
    return with_nulls_of(pc.binary_join_element_wise("\\x", texts, ""), column)


def uuid_binary(column: Array) -> Array:
    """16 bytes from the text with its four hyphens."""
    texts = filled(column, "00000000-0000-0000-0000-000000000000")
    if (lengths(texts) != _UUID_CHARACTERS).any():
        raise ValueError("a UUID has 36 characters")
    digits = pc.replace_substring(texts, "-", "")
    start = np.frombuffer(digits.buffers()[1], np.int32)[digits.offset] if len(digits) else 0
    data = np.frombuffer(digits.buffers()[2] or b"", np.uint8)[start : start + 32 * len(digits)]
    # PostgreSQL writes the digits of a UUID in lower case only.
    values = np.where(data < ord("a"), data - ord("0"), data - ord("a") + 10).reshape(-1, 2)
    found = (values[:, 0] * 16 + values[:, 1]).astype(np.uint8).reshape(-1, 16)
    return with_nulls_of(matrix(found), column)


def versioned_binary(column: Array) -> Array:
    """The text after its version, as of jsonb."""
    return pc.binary_join_element_wise(
        pa.scalar(b"\1", pa.binary()), column.cast(pa.binary()), pa.scalar(b"", pa.binary())
    )


def one_byte(text: str) -> bytes:
    """Of "char"."""
    # PostgreSQL writes a byte beyond ASCII in octal digits, and a zero byte as an empty text.
    if text.startswith("\\") and text != "\\":
        return bytes([int(text[1:], 8)])
    return text.encode() or b"\0"


def timetz_bytes(text: str) -> bytes:
    """Microseconds, and seconds west of UTC."""
    at = max(text.rfind("+"), text.rfind("-"))
    hour, minute, second = text[:at].split(":")
    whole_, _, part = second.partition(".")
    seconds = int(hour) * 3600 + int(minute) * 60 + int(whole_)
    fields = [int(field) for field in text[at + 1 :].split(":")]
    # Minutes and seconds of an offset are absent from the text if they are zero.
    west = sum(field * unit for field, unit in zip(fields, (3600, 60, 1), strict=False))
    if text[at] == "+":
        west = -west
    return struct.pack(">qi", seconds * 1_000_000 + int(part.ljust(6, "0")), west)


def bits(text: str) -> bytes:
    """Of bit and varbit."""
    padded = text.ljust(-(-len(text) // 8) * 8, "0")
    body = int(padded, 2).to_bytes(len(padded) // 8, "big") if padded else b""
    return struct.pack(">i", len(text)) + body


def _address(is_cidr: bool) -> Callable[[str], bytes]:
    def form(text: str) -> bytes:
        found = ipaddress.ip_interface(text)
        family = _IPV4 if found.version == 4 else _IPV6
        packed = found.packed
        return struct.pack("BBBB", family, found.network.prefixlen, is_cidr, len(packed)) + packed

    return form


def mac(text: str) -> bytes:
    """Of macaddr and macaddr8."""
    return bytes.fromhex(text.replace(":", ""))


def lsn(text: str) -> bytes:
    """Of pg_lsn."""
    high, _, low = text.partition("/")
    return struct.pack(">II", int(high, 16), int(low, 16))


def _integer(kind: str) -> Callable[[str], bytes]:
    return lambda text: struct.pack(kind, int(text))


def _text(value: str) -> bytes:
    return value.encode()


BY_TEXT: Final[Mapping[int, Callable[[Any], bytes]]] = MappingProxyType(
    {
        18: one_byte,
        28: _integer(">I"),
        29: _integer(">I"),
        142: _text,
        650: _address(True),
        829: mac,
        774: mac,
        869: _address(False),
        1266: timetz_bytes,
        1560: bits,
        1562: bits,
        3220: lsn,
        5069: _integer(">Q"),
    }
)
"""Binary forms by the types' OIDs: "char", xid, cid, xml, cidr, macaddr, macaddr8, inet, timetz,
bit, varbit, pg_lsn, xid8.
"""


def by_text(type_oid: int) -> Callable[[Any], bytes]:
    """The binary form of a type from its text."""
    form = BY_TEXT.get(type_oid)
    if form is None:
        feature = f"the binary form of the type with OID {type_oid}"
        raise NotProvenEqualError(feature, "Ask for results as text.")
    return form
