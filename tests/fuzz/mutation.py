"""Bytes that are nearly right: valid seeds, changed a little, as a truncating or lying peer would
send them.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

# Sizes and signs at their edges, which is where a decoder's arithmetic goes wrong.
_EDGES = [
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\x00\x00",
    b"\x7f\xff",
    b"\xff\xff",
    b"\x00\x00\x00\x00",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\xff" * 8,
    b'"',
    b"{",
    b"}",
    b"\\",
    b",",
]
_places = st.floats(0, 1, exclude_max=True)


def _cut(data: bytes, at: int, _: bytes) -> bytes:
    return data[:at]


def _drop(data: bytes, at: int, given: bytes) -> bytes:
    return data[:at] + data[at + len(given) :]


def _insert(data: bytes, at: int, given: bytes) -> bytes:
    return data[:at] + given + data[at:]


def _overwrite(data: bytes, at: int, given: bytes) -> bytes:
    return data[:at] + given + data[at + len(given) :]


def _repeat(data: bytes, at: int, given: bytes) -> bytes:
    return data[:at] + data[at:] * (1 + len(given))


_changes = st.tuples(
    st.sampled_from([_cut, _drop, _insert, _overwrite, _overwrite, _repeat]),
    _places,
    st.sampled_from(_EDGES) | st.binary(min_size=1, max_size=4),
)


def mutants(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """A seed after up to four changes."""
    return st.builds(_mutant, st.sampled_from(seeds), st.lists(_changes, max_size=4))


def _mutant(seed: bytes, changes: list[tuple[object, float, bytes]]) -> bytes:
    for change, place, given in changes:
        assert callable(change)
        seed = change(seed, int(place * (len(seed) + 1)), given)
    return seed
